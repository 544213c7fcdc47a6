"""Every message that crosses a process boundary, one struct per arrow.

Read top to bottom, the file is the life of a request::

    client       → coscheduler   SubmitRequest · CancelRequest · AckFinished
                                 TokenizePrompt · QueryHealth
    coscheduler  → client        RequestAccepted · RequestFinished · PromptTokenized · HealthReport
    coscheduler  → tokenizer     EncodePrompt · EncodeProbe
    tokenizer    → coscheduler   PromptEncoded · PromptRejected · ProbeEncoded
    coscheduler  → gpu           JoinBatch · GrantBlocks · RetireSlot
    gpu          → coscheduler   StepReport
    coscheduler  → detokenizer   OpenText · CloseText
    client       → detokenizer   SubscribeText
    detokenizer  → client        TextDeltas · TextUnknown
    detokenizer  → coscheduler   TextFinished · ReaderLost
    any worker   ↔ coscheduler   AttachWorker → WorkerAttached · CheckLink → LinkChecked
    supervisor   → coscheduler   WorkerDied → DeathNoted · DrainTree → TreeDrained
    supervisor   ↔ its child     StandBy · WorkerSpec · ReplaceRing · DrainWorker
                                 LoadProgress · WorkerReady · WorkerFailed
    admin client ↔ supervisor    ListProcesses → ProcessList · StopTree → StopAccepted

Orders are verb + noun, facts are past tense or nouns. Everything is msgpack through msgspec;
nothing is pickled. A message about a slot carries ``(slot, epoch)``: a repeat is harmless, a stale
one is ignored. Between the coscheduler and the tree's other processes every message travels in a
``Stamped``, which shows what was lost, doubled or overtaken. Unknown fields, types or malformed
frames raise ``MessageCorrupt`` in ``decode``; the receiver counts and drops them.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from hybridgen.config import Config
from hybridgen.errors import FieldValue, HybridGenError, MessageCorrupt, from_wire
from hybridgen.request import Grammar, Prompt, SamplingParams, TokenLogprob


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


Body = TypeVar("Body")


class Stamped(msgspec.Struct, Generic[Body], frozen=True, array_like=True):
    """A frame between the coscheduler and another process of the tree (``ipc/link_end.py``)."""

    sender: int  # incarnation of who says it
    receiver: int  # ... of whom it is meant for; 0: not known yet
    number: int  # counts from 1 for each such pair
    num_missed: int  # frames of the other side that did not come, of the present pair
    messages: list[Body]  # what there was to say at once, in order


#: What a socket carries.
Frame = Message | Stamped[Any]


class ErrorInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error on its way between processes."""

    code: str
    message: str
    fields: dict[str, FieldValue] = {}

    @classmethod
    def of(cls, error: HybridGenError) -> ErrorInfo:
        """Wire form of ``error``, which can be sent whatever stands in it."""
        fields = {name: _sendable(value) for name, value in error.fields.items()}
        return cls(error.code, _well_formed(error.message), fields)

    def exception(self) -> HybridGenError:
        """The error as the same class that was raised."""
        return from_wire(self.code, self.message, self.fields)


def _sendable(value: FieldValue) -> FieldValue:
    if isinstance(value, str):
        return _well_formed(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"an integer of {value.bit_length()} bits"
    return value


def _well_formed(text: str) -> str:
    """``text`` with lone surrogates, which no UTF-8 can carry, as escapes."""
    return text.encode(errors="backslashreplace").decode()


# --- client → coscheduler -----------------------------------------------------------------------


class SubmitRequest(Message, frozen=True, kw_only=True):
    """Serve this. Repeating it (same client, same id) attaches to the running request."""

    request_id: bytes  # 16 random bytes chosen by the client
    prompt: Prompt
    params: SamplingParams
    timeout_s: float | None = None
    priority: int = 0
    traceparent: str = ""  # W3C trace context of the caller, for logs and spans


class CancelRequest(Message, frozen=True):
    """Stop it in whatever phase it is; answered by RequestFinished."""

    request_id: bytes


class AckFinished(Message, frozen=True):
    """The client has the final message and all the text: the slot may be reused."""

    request_id: bytes


class TokenizePrompt(Message, frozen=True):
    """Only encode; answered by PromptTokenized."""

    request_id: bytes
    prompt: Prompt


class QueryHealth(Message, frozen=True):
    """Ask whether the tree can serve; answered by HealthReport."""

    request_id: bytes


# --- coscheduler → client -----------------------------------------------------------------------


class RequestAccepted(Message, frozen=True):
    """It has a slot. Sent again with another index when its text moves to another detokenizer."""

    request_id: bytes
    detokenizer: int
    seed: int


class RequestFinished(Message, frozen=True, kw_only=True):
    """The end, exactly once. The client is done when it also holds num_tokens and num_chars."""

    request_id: bytes
    finish_reason: str
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt: found in the KV cache
    num_tokens: int = 0
    num_chars: int = 0
    error: ErrorInfo | None = None


class PromptTokenized(Message, frozen=True):
    """Answer to TokenizePrompt: ids, or the error."""

    request_id: bytes
    ids: list[int] = []
    error: ErrorInfo | None = None


class HealthReport(Message, frozen=True, kw_only=True):
    """Answer to QueryHealth."""

    request_id: bytes
    is_ready: bool
    status: str  # "ready", "loading", "draining", "degraded: …", "not ready: …"
    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0
    num_slots: int = 0
    num_free_slots: int = 0
    last_step_age_s: float | None = None


# --- coscheduler ↔ tokenizer --------------------------------------------------------------------


class EncodePrompt(Message, frozen=True):
    """Render, encode, write the ids into the slot's token row."""

    slot: int
    epoch: int
    prompt: Prompt
    grammar: Grammar | None = None  # compiled only to refuse one that cannot be followed
    stop_regex: str | None = None  # the same


class PromptEncoded(Message, frozen=True):
    """The ids are in the token row, positions 0 … num_tokens-1."""

    slot: int
    epoch: int
    num_tokens: int
    incarnation: int = 0  # who says so; what a dead process said counts no more; 0: any
    tokenizer: int = 0  # its index


class PromptRejected(Message, frozen=True):
    """The prompt cannot be encoded (bad template input, too long, …), or a grammar compiled."""

    slot: int
    epoch: int
    error: ErrorInfo
    incarnation: int = 0  # as in PromptEncoded
    tokenizer: int = 0


class EncodeProbe(Message, frozen=True):
    """Encode without a slot, for TokenizePrompt."""

    probe_id: int
    prompt: Prompt


class ProbeEncoded(Message, frozen=True):
    """Answer to EncodeProbe."""

    probe_id: int
    ids: list[int] = []
    error: ErrorInfo | None = None


# --- coscheduler ↔ gpu --------------------------------------------------------------------------


class JoinBatch(Message, frozen=True):
    """Prefill the first num_tokens ids of the slot's token row, then decode it every step.

    Blocks may hold only the beginning of them: more is granted while they are computed.
    """

    slot: int
    epoch: int
    detokenizer: int
    num_tokens: int
    num_cached: int  # leading tokens whose KV is already in the blocks (prefix cache)
    blocks: list[int]  # block table from position 0


class GrantBlocks(Message, frozen=True):
    """Blocks for the table from index ``first`` on. Repeats overwrite with the same values."""

    slot: int
    epoch: int
    first: int
    blocks: list[int]


class RetireSlot(Message, frozen=True):
    """Take the row out (cancelled, stopped, preempted); confirmed in StepReport.retired."""

    slot: int
    epoch: int


class SlotEvent(msgspec.Struct, frozen=True, array_like=True):
    """A row, as the gpu process reports it."""

    slot: int
    epoch: int


class RowProgress(msgspec.Struct, frozen=True, array_like=True):
    """How many leading tokens of a row are in its blocks (or, while it is decoded, ordered)."""

    slot: int
    epoch: int
    num_tokens: int


class StepReport(Message, frozen=True, kw_only=True):
    """Sent when membership or need changed, never for a mere token."""

    step: int
    advanced: list[RowProgress] = []  # pieces of prompts are in, with more to come
    prefilled: list[SlotEvent] = []  # prompt is in, the row decodes from now on
    finished: list[SlotEvent] = []  # sampler ended it; its blocks are no longer touched
    retired: list[SlotEvent] = []  # answer to RetireSlot (also for rows not known here)
    starving: list[RowProgress] = []  # fewer than one block of room left
    overflowed: list[SlotEvent] = []  # off: the device had no memory to compute them
    memory_error: ErrorInfo | None = None  # ... and what it said
    incarnation: int = 0  # as in PromptEncoded


# --- coscheduler ↔ detokenizer, detokenizer ↔ client --------------------------------------------


class OpenText(Message, frozen=True):
    """Turn the slot's generated ids into text for its client."""

    slot: int
    epoch: int


class CloseText(Message, frozen=True):
    """The request ended from outside: flush what was generated, answer TextFinished."""

    slot: int
    epoch: int


class SubscribeText(Message, frozen=True):
    """Send the request's text from this token and character on (0, 0 at first)."""

    request_id: bytes
    token_offset: int = 0
    char_offset: int = 0


class TextDelta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """New text of one request. ids, logprobs and text agree: held-back text holds its ids back."""

    request_id: bytes
    token_offset: int  # index of token_ids[0] among the generated tokens
    char_offset: int  # characters of text sent before this
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None


class TextDeltas(Message, frozen=True, array_like=True):
    """All new text for one client: one frame per wake-up."""

    deltas: list[TextDelta]


class TextUnknown(Message, frozen=True, array_like=True):
    """No such request here (yet, or any more); the client asks again or has its final message."""

    request_id: bytes


class TextFinished(Message, frozen=True, kw_only=True):
    """All text of the slot was handed to the client's socket."""

    slot: int
    epoch: int
    num_tokens: int
    num_chars: int
    finish_reason: int  # FinishReason
    error: ErrorInfo | None = None


class ReaderLost(Message, frozen=True):
    """The client does not read or is not there; the request should be cancelled."""

    slot: int
    epoch: int
    error: ErrorInfo


# --- attachment and supervision -----------------------------------------------------------------


class AttachWorker(Message, frozen=True):
    """A coscheduler (new, or not sure) asks a worker to introduce itself."""

    coscheduler_incarnation: int
    call: int = 0  # grows whenever it has ceased to be sure


#: What an introduction answers that nobody asked for.
UNASKED = AttachWorker(0)


class BatchRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that the gpu process holds."""

    slot: int
    epoch: int
    num_computed: int
    blocks: list[int]


class WorkerAttached(Message, frozen=True, kw_only=True):
    """A worker introduces itself: at its start, and whenever it is asked."""

    role: str
    index: int
    incarnation: int
    answers: int = 0  # coscheduler_incarnation of the AttachWorker it answers; 0: not asked
    call: int = 0  # ... and its call
    rows: list[BatchRow] = []  # gpu: what is in its batch
    num_blocks: int = 0  # gpu: KV blocks it has
    open_slots: list[SlotEvent] = []  # detokenizer: texts it works on


class CheckLink(Message, frozen=True):
    """Sent now and then: its number, and that of the answer, show what was lost before it."""


class LinkChecked(Message, frozen=True):
    """Answer to CheckLink."""


class WorkerDied(Message, frozen=True):
    """The supervisor saw this process end; a replacement follows unless ``is_final``.

    Repeated until DeathNoted answers.
    """

    role: str
    index: int
    incarnation: int
    reason: str
    is_final: bool
    served: SlotEvent | None = None  # whom it was working for; None: nobody in particular


class DeathNoted(Message, frozen=True):
    """Answer to WorkerDied, also to a repeated one."""

    role: str
    index: int
    incarnation: int


class DrainTree(Message, frozen=True):
    """Refuse new work, finish what runs within the time, end the rest, answer TreeDrained.

    Repeated until then.
    """

    timeout_s: float


class TreeDrained(Message, frozen=True):
    """No request is left."""

    num_cut: int  # requests that were ended by the time limit


class StandBy(Message, frozen=True, kw_only=True):
    """First frame of a process that waits for a ``WorkerSpec``: what it can load meanwhile."""

    title: str
    entry: str  # "module:function", called with the two below; returns the spec's entry
    supervisor_pid: int
    model_path: str
    config: Config


class WorkerSpec(Message, frozen=True, kw_only=True):
    """All that a worker is born with: the first frame, or the one after ``StandBy``."""

    role: str
    index: int
    incarnation: int
    instance: str  # short hex name of the tree
    entry: str  # "module:function"
    supervisor_pid: int
    config: Config
    model_path: str
    runtime_dir: str
    segment_fds: dict[str, int]  # name → inherited descriptor
    doorbell_fds: dict[str, int]  # "detokenizer-0" → inherited eventfd
    worker_names: list[str]  # every process of the tree, board order
    board_index: int
    cpus: list[int] = []  # affinity to set; empty: leave as it is
    listener_fd: int = -1  # gateway: the inherited socket to accept on


class LoadProgress(Message, frozen=True):
    """How far a starting worker is, 0 … 1."""

    fraction: float
    phase: str


class WorkerReady(Message, frozen=True, kw_only=True):
    """Counted by the supervisor: the tree is up when each child has sent one."""

    rss_bytes: int
    cpus: list[int]  # effective affinity
    note: str = ""


class WorkerFailed(Message, frozen=True):
    """The child's own root cause, sent just before it exits."""

    error: ErrorInfo
    traceback: str = ""


class ReplaceRing(Message, frozen=True):
    """A new gpu incarnation has a new ring; its descriptors come with the frame, in name order."""

    epoch: int
    names: list[str]


class DrainWorker(Message, frozen=True):
    """Finish what is in hand and exit 0."""


# --- admin client ↔ supervisor ------------------------------------------------------------------


class ListProcesses(Message, frozen=True):
    """Answered by ProcessList."""

    request_id: bytes


class RingFill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What waits in front of a process."""

    name: str  # "logits": steps that samplers have not answered; "texts", "prompts", …
    depth: int
    capacity: int | None  # None: bounded by what is in front of it


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of `hybridgen ps`."""

    name: str  # "sampler-0"
    role: str
    index: int
    pid: int
    incarnation: int
    state: str
    restarts: int
    cpus: list[int]
    rss_bytes: int
    cpu_time_s: float = 0.0  # of all its threads, since its start
    progress: int  # turns of its loop that did something
    progress_age_s: float | None = None  # since the last of them; None without a process
    last_exit: str = ""
    rings: list[RingFill] = []
    counters: dict[str, int] = {}
    histograms: dict[str, list[int]] = {}  # values per bucket; HISTOGRAMS of ipc/board.py


class ProcessList(Message, frozen=True, kw_only=True):
    """The tree as the supervisor sees it."""

    request_id: bytes
    instance: str
    model: str
    device: str
    uptime_s: float
    is_ready: bool
    shm_bytes: int
    processes: list[ProcessInfo]
    cgroup: str = ""
    """Folder of the tree's control groups; empty when it has none."""


class StopTree(Message, frozen=True):
    """Drain and exit; ``timeout_s`` None means the configured drain limit."""

    request_id: bytes
    timeout_s: float | None = None


class StopAccepted(Message, frozen=True):
    """The tree is going down."""

    request_id: bytes


# --- unions by channel: what a receiver is ready to decode --------------------------------------

ClientOrder = SubmitRequest | CancelRequest | AckFinished | TokenizePrompt | QueryHealth
ClientReply = RequestAccepted | RequestFinished | PromptTokenized | HealthReport
TextOrder = SubscribeText
TextReply = TextDeltas | TextUnknown
TokenizerOrder = EncodePrompt | EncodeProbe | AttachWorker | CheckLink
GpuOrder = JoinBatch | GrantBlocks | RetireSlot | AttachWorker | CheckLink
DetokenizerOrder = OpenText | CloseText | AttachWorker | CheckLink
WorkerFact = (
    PromptEncoded
    | PromptRejected
    | ProbeEncoded
    | StepReport
    | TextFinished
    | ReaderLost
    | WorkerAttached
    | LinkChecked
    | WorkerDied
    | DrainTree
)
SupervisorFact = TreeDrained | DeathNoted
ChildOrder = StandBy | WorkerSpec | ReplaceRing | DrainWorker
ChildFact = WorkerReady | WorkerFailed | LoadProgress
AdminOrder = ListProcesses | StopTree
AdminReply = ProcessList | StopAccepted

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode


class Decoder:
    """Decodes one union; anything else is ``MessageCorrupt``."""

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(union)

    def __call__(self, frame: bytes | memoryview) -> Any:
        """The message in ``frame``.

        Raises:
            MessageCorrupt: naming the path to the bad field.
        """
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MessageCorrupt(
                f"a frame cannot be decoded: {error}",
                value=f"{len(frame)} bytes",
                remedy="Use a client of the same version as the server",
            ) from None
