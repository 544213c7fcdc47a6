"""A tree without processes: real segments, sockets and doorbells, workers driven by the test.

Imports neither numpy nor torch, so that what a worker loads can be told from it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from hybridgen.config import Config
from hybridgen.formats.mock_model import EOS_ID, VOCAB_SIZE
from hybridgen.ipc.board import Board, BoardSnapshot
from hybridgen.ipc.channel import Dealer
from hybridgen.ipc.control import ControlSocket, control_pair
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.logit_ring import LogitRing
from hybridgen.ipc.logprob_ring import LogprobRing
from hybridgen.ipc.runtime_dir import Endpoints, RuntimeDir
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.segment import Segment, SegmentKind
from hybridgen.ipc.slot_table import SlotState, SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.ipc.worker_links import WorkerLinks
from hybridgen.messages import (
    ChildFact,
    Decoder,
    Message,
    ReplaceRing,
    TextReply,
    WorkerSpec,
    encode,
)
from hybridgen.request import SamplingParams
from hybridgen.sampling import parameters
from hybridgen.workers.lifecycle import SEGMENT_KINDS, WorkerContext
from tests.support.eventually import eventually

INSTANCE = 7
NUM_SLOTS = 8
MAX_ROWS = 6
RING_DEPTH = 2
LOGPROB_DEPTH = 64
NAMES = ["coscheduler-0", "gpu-0", "sampler-0", "sampler-1", "tokenizer-0", "detokenizer-0"]

_decode_fact = Decoder(ChildFact)


class Closable(Protocol):
    """A socket, or a worker with sockets."""

    def close(self) -> None:
        """Give back what it holds."""


class Workplace:
    """Use as a context manager; closes everything it handed out.

    Attributes:
        slots, tokens, logits, sampled, logprobs, board: views of the tree's segments.
        coscheduler: the socket that workers connect to; call ``open_coscheduler`` first.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        *,
        num_lanes: int = 2,
        max_model_len: int = 256,
        ring_depth: int = RING_DEPTH,
        cut_capacity: int = 0,
    ) -> None:
        self.config = config
        self.runtime_dir = RuntimeDir.create(path, "test")
        self.endpoints = Endpoints(self.runtime_dir.path)
        self.num_lanes = num_lanes
        self.ring_depth = ring_depth
        self.cut_capacity = cut_capacity
        self.names = [name for name in NAMES if name != "sampler-1" or num_lanes > 1]
        self._segments = {
            "slots": _create(SlotTable, SegmentKind.SLOTS, (NUM_SLOTS,), (max_model_len,)),
            "tokens": _create(TokenStore, SegmentKind.TOKENS, (NUM_SLOTS, max_model_len)),
            "logprobs": _create(LogprobRing, SegmentKind.LOGPROBS, (NUM_SLOTS, LOGPROB_DEPTH)),
            "board": _create(Board, SegmentKind.BOARD, (len(self.names),)),
        }
        self.slots = SlotTable(self._segments["slots"].buf)
        self.tokens = TokenStore(self._segments["tokens"].buf)
        self.logprobs = LogprobRing(self._segments["logprobs"].buf)
        self.board = Board(self._segments["board"].buf)
        self._make_ring(1)
        self.bells = {"detokenizer-0": Doorbell.create()}
        self.controls: dict[str, ControlSocket] = {}
        self._contexts: list[WorkerContext] = []
        self._adopted: list[Closable] = []

    def __enter__(self) -> Workplace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for thing in self._adopted:
            thing.close()
        for context in self._contexts:
            context.control.close()
            for name in SEGMENT_KINDS:
                context.segment(name).close()
        for control in self.controls.values():
            control.close()
        for bell in self.bells.values():
            bell.close()
        for segment in self._segments.values():
            segment.close()
        self.runtime_dir.remove()
        vars(self).clear()  # views keep mappings alive for as long as the runner keeps this

    # --- workers and their neighbours -----------------------------------------------------------

    def spec(self, name: str, *, incarnation: int = 1, entry: str = "") -> WorkerSpec:
        """What the supervisor would send; descriptors are copies for the worker to keep."""
        role, _, index = name.partition("-")
        return WorkerSpec(
            role=role,
            index=int(index),
            incarnation=incarnation,
            instance="test",
            entry=entry or f"hybridgen.workers.{role}:run",
            supervisor_pid=os.getpid(),
            config=self.config,
            model_path="mock",
            runtime_dir=str(self.runtime_dir.path),
            segment_fds={name: os.dup(segment.fd) for name, segment in self._segments.items()},
            doorbell_fds={name: bell.fileno() for name, bell in self.bells.items()},
            worker_names=self.names,
            board_index=self.names.index(name),
        )

    def context(self, name: str, *, incarnation: int = 1) -> WorkerContext:
        """A worker's ties, with the supervisor's end of its control socket in ``controls``."""
        spec = self.spec(name, incarnation=incarnation)
        if name in self.controls:
            self.controls.pop(name).close()
        self.controls[name], theirs = control_pair()
        context = WorkerContext(spec, theirs)
        self._contexts.append(context)
        return context

    def order(self, name: str, message: Message, fds: Sequence[int] = ()) -> None:
        """Send over the control socket of a worker."""
        self.controls[name].send(encode(message), fds)

    def facts(self, name: str) -> list[Any]:
        """What a worker has said over its control socket by now."""
        facts = []
        while (received := self.controls[name].receive(0.0)) is not None:
            facts.append(_decode_fact(received[0]))
        return facts

    def open_coscheduler(self) -> FactSocket:
        """The socket that workers report to."""
        links = WorkerLinks(self.endpoints.workers, 1, NAMES)
        self.adopt(links)
        return FactSocket(links)

    def reader(self, client_id: bytes, *, high_water: int = 1000) -> Dealer:
        """A client's text socket."""
        dealer = Dealer(
            self.endpoints.text(0), client_id, Decoder(TextReply), high_water=high_water
        )
        self.adopt(dealer)
        return dealer

    def adopt(self, thing: Closable) -> None:
        """Close it with everything else."""
        self._adopted.append(thing)

    # --- shared memory, as the coscheduler and the supervisor would write it ---------------------

    def fill_slot(
        self,
        slot: int,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        *,
        client_id: bytes = b"client-000000000",
        max_tokens: int = 1000,
    ) -> int:
        """Put a request into a slot, encoded when there is a prompt; its epoch."""
        slots = self.slots
        epoch = slots.load(slot, SlotWord.EPOCH) + 10 + slot
        slots.store(slot, SlotWord.STATE, SlotState.FREE)
        slots.clear_worker_lines(slot)
        slots.set_ids(slot, client_id, request_id(slot, epoch))
        record, area = slots.parameters(slot), slots.grammar(slot)
        parameters.pack(params, (EOS_ID,), params.seed or 0, record, area)
        slots.store(slot, SlotWord.EPOCH, epoch)
        slots.store(slot, SlotWord.END_REASON, 0)
        slots.store(slot, SlotWord.PROMPT_LEN, len(prompt))
        slots.store(slot, SlotWord.MAX_LEN, min(slots.max_model_len, len(prompt) + max_tokens))
        self.tokens.write(slot, 0, prompt)
        slots.store(slot, SlotWord.STATE, SlotState.RUNNING if prompt else SlotState.ENCODING)
        return epoch

    def generate(self, slot: int, ids: Sequence[int]) -> None:
        """Append generated ids, as a sampler would."""
        generated = self.slots.load(slot, SlotWord.GENERATED)
        start = self.slots.load(slot, SlotWord.PROMPT_LEN) + generated
        self.tokens.write(slot, start, ids)
        self.slots.store(slot, SlotWord.GENERATED, generated + len(ids))

    def output(self, slot: int) -> list[int]:
        """Ids generated so far."""
        prompt_len = self.slots.load(slot, SlotWord.PROMPT_LEN)
        stop = prompt_len + self.slots.load(slot, SlotWord.GENERATED)
        return self.tokens.read(slot, prompt_len, stop)

    def snapshot(self, name: str) -> BoardSnapshot:
        """A worker's record on the board."""
        return self.board.snapshot(self.names.index(name))

    def replace_ring(self, samplers: Sequence[str]) -> None:
        """What the supervisor does when the gpu process dies."""
        self.logits.poison()
        old = self._segments["logits"], self._segments["sampled"]
        self._make_ring(self._segments["logits"].epoch + 1)
        names = ["logits", "sampled"]
        for sampler in samplers:
            message = ReplaceRing(self._segments["logits"].epoch, names)
            self.order(sampler, message, [self._segments[name].fd for name in names])
        for segment in old:
            segment.close()

    def _make_ring(self, epoch: int) -> None:
        shape = (self.ring_depth, MAX_ROWS)
        lanes = (self.num_lanes,)
        self._segments["logits"] = Segment.create(
            SegmentKind.LOGITS,
            LogitRing.size_bytes(*shape, VOCAB_SIZE, self.cut_capacity),
            LogitRing.make_geometry(*shape, VOCAB_SIZE, self.num_lanes, self.cut_capacity),
            INSTANCE,
            epoch,
        )
        self._segments["sampled"] = _create(SampledRing, SegmentKind.SAMPLED, shape + lanes)
        self.logits = LogitRing(self._segments["logits"].buf)
        self.sampled = SampledRing(self._segments["sampled"].buf)


class FactSocket:
    """The coscheduler's worker socket, in a test's hands."""

    def __init__(self, links: WorkerLinks) -> None:
        self._links = links
        self.facts: list[Any] = []

    def send(self, name: str, *messages: Message) -> None:
        """To a worker that has introduced itself."""
        for message in messages:
            self._links.send(name, message)

    def receive(self) -> list[Any]:
        """Everything received so far, in order."""
        while (arrival := self._links.receive()) is not None:
            self.facts.append(arrival.fact)
        return self.facts

    def of(self, kind: type[Any]) -> list[Any]:
        """The facts of one kind so far."""
        return [fact for fact in self.receive() if isinstance(fact, kind)]

    def wait_for(self, kind: type[Any], count: int = 1) -> list[Any]:
        """The facts of one kind, once there are so many."""
        eventually(lambda: len(self.of(kind)) >= count, 5.0)
        return self.of(kind)


def request_id(slot: int, epoch: int) -> bytes:
    """The request that ``fill_slot`` puts there."""
    return f"request-{slot:02}-{epoch:05}".encode()


def _create(
    view: Any, kind: SegmentKind, shape: tuple[int, ...], more: tuple[int, ...] = ()
) -> Segment:
    return Segment.create(
        kind, view.size_bytes(*shape), view.make_geometry(*shape, *more), INSTANCE
    )
