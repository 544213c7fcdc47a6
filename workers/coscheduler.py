"""The coscheduler process: sockets around the state machine of hybridgen.scheduler.

Two ROUTER sockets: clients talk to one, the tree's own processes to the other. A turn drains both,
lets time pass in the state machine, and sends what it wants said. What a full socket does not
take is kept in order and sent when it does.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hybridgen import fault
from hybridgen.clock import monotonic_s
from hybridgen.errors import InvalidRequest, MessageCorrupt
from hybridgen.formats.inspect import inspect_model
from hybridgen.ipc.board import Board, ProcessState
from hybridgen.ipc.channel import Poller, Router, SendResult
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.runtime_dir import SUPERVISOR_IDENTITY, Endpoints
from hybridgen.ipc.slot_table import SlotTable
from hybridgen.ipc.token_store import TokenStore
from hybridgen.ipc.worker_links import WorkerLinks
from hybridgen.kvcache.kv_window import piece_tokens
from hybridgen.messages import (
    ClientOrder,
    Decoder,
    EncodeProbe,
    EncodePrompt,
    HealthReport,
    WorkerDied,
    WorkerSpec,
)
from hybridgen.request import ID_BYTES
from hybridgen.scheduler.coscheduler import Coscheduler
from hybridgen.scheduler.outbox import Addressed, ToClient, ToWorker
from hybridgen.scheduler.tree_shape import TreeShape
from hybridgen.workers.journal import Journal
from hybridgen.workers.lifecycle import IDLE_WAIT_S, WorkerContext

logger = logging.getLogger(__name__)

#: Which socket, and whom on it.
Addressee = tuple[str, bytes]

#: A full socket is tried again after this long.
RETRY_WAIT_S = 0.01
#: Orders in one frame: with their block tables they stay far below what a frame may hold.
MAX_IN_FRAME = 16
_PROMPTS = (EncodePrompt, EncodeProbe)
#: Messages that are kept for a client whose socket is full.
MAX_WAITING = 10_000
#: By device: from where on it pays that prompts share KV blocks. A CUDA device computes fewer
#: tokens in no less time, and only a few prompts of a piece may go on from the cache.
LEAST_SHARED_TOKENS = {"cuda": 256}
#: The board is read and written at most this often: it is for people, and costs as much as a turn.
ACCOUNT_S = 0.1


def run(spec: WorkerSpec, control: ControlSocket) -> int:
    """Schedule until told to exit; the exit code."""
    context = WorkerContext(spec, control)
    host = CoschedulerHost(context)
    context.ready()
    while not context.should_exit:
        host.turn()
    host.close()
    return 0


class CoschedulerHost:
    """Sockets, one state machine, and what still has to be sent."""

    def __init__(self, context: WorkerContext) -> None:
        spec = context.spec
        self._context = context
        endpoints = Endpoints(Path(spec.runtime_dir))
        names = (*spec.worker_names, SUPERVISOR_IDENTITY.decode())
        self._workers = WorkerLinks(endpoints.workers, spec.incarnation, names)
        self._clients = Router(
            [endpoints.clients], Decoder(ClientOrder), on_corrupt=self._refuse_frame
        )
        info = inspect_model(spec.model_path, spec.config)
        slots = SlotTable(context.segment("slots").buf)
        self._scheduler = Coscheduler(
            slots,
            TreeShape(
                vocab_size=info.config.vocab_size,
                max_model_len=slots.max_model_len,
                eos_ids=tuple(info.config.eos_ids),
                block_size=spec.config.device.block_size,
                kept_window=info.config.kept_window,
                piece_tokens=piece_tokens(spec.config),
                num_tokenizers=_count(spec, "tokenizer"),
                num_detokenizers=_count(spec, "detokenizer"),
                incarnation=spec.incarnation,
                least_shared_tokens=LEAST_SHARED_TOKENS.get(spec.config.device.device, 1),
            ),
            spec.config.scheduler,
            monotonic_s,
            draw_seed=lambda: secrets.randbits(64),
            tokens=TokenStore(context.segment("tokens").buf),
        )
        self._board = Board(context.segment("board").buf)
        self._gpu_line = spec.worker_names.index("gpu-0")
        self._journal = Journal(context, self._board)
        self._waiting: dict[Addressee, deque[Addressed]] = {}
        self._tick_wait_s = 0.0
        self._account_s = 0.0
        self._poller = Poller()
        for source in (self._workers, self._clients, context.control):
            self._poller.add(source)
        if spec.incarnation > 1:
            self._scheduler.restore()
        self._flush()

    def turn(self) -> None:
        """Wait for anything, handle all of it, say what there is to say."""
        wait_s = min(self._tick_wait_s, IDLE_WAIT_S)
        ready = self._poller.poll(min(wait_s, RETRY_WAIT_S) if self._waiting else wait_s)
        self._context.line.beat()
        if self._context.control in ready:
            self._context.read_orders()
        is_due = monotonic_s() >= self._account_s
        if is_due:
            self._look_at_board()
        while (arrival := self._workers.receive()) is not None:
            if arrival.has_loss:
                self._scheduler.doubt(arrival.name)
            self._scheduler.handle_worker(arrival.fact)
            if isinstance(arrival.fact, WorkerDied):
                _log_death(arrival.fact)
        while (received := self._clients.receive()) is not None:
            self._scheduler.handle_client(*received)
        fault.point("coscheduler.turn")
        gpu_progress = self._board.progress(self._gpu_line) if is_due else None
        self._tick_wait_s = self._scheduler.tick(gpu_progress)
        self._flush()
        self._account(is_due)

    def _look_at_board(self) -> None:
        board, names = self._board, list(enumerate(self._context.spec.worker_names))
        samplers = [line for line, name in names if name.startswith("sampler-")]
        self._scheduler.note_board(
            still=[name for line, name in names if board.stands_still(line)],
            num_samplers=sum(board.state(line) is ProcessState.READY for line in samplers),
        )

    def _flush(self) -> None:
        """Send what waits, then what is new; order is kept for each addressee."""
        for addressee, waiting in list(self._waiting.items()):
            while waiting and self._send(addressee, waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._waiting[addressee]
        for addressee, items in frames(self._scheduler.take_outbox()):
            queue = self._waiting.get(addressee)
            if queue is None:
                if not self._send(addressee, *items):
                    self._waiting[addressee] = deque(items)
            elif _is_knock(items[0]):
                continue  # what waits already shows whether the client is there
            elif isinstance(items[0], ToClient) and len(queue) >= MAX_WAITING:
                self._scheduler.handle_unreachable(items[0])  # it reads nothing: as good as gone
            else:
                queue.extend(items)

    def _send(self, addressee: Addressee, *items: Addressed) -> bool:
        """False when the socket is full; who is not there is reported to the state machine."""
        socket, identity = addressee
        if socket == "clients":
            result = self._clients.send(identity, items[0].message)
        else:
            result = self._workers.send(identity.decode(), *[item.message for item in items])
        if result is SendResult.GONE:
            self._scheduler.handle_unreachable(items[0])
            self._tick_wait_s = 0.0  # what follows from it is said at once
        return result is not SendResult.BLOCKED

    def _refuse_frame(self, client_id: bytes, frame: bytes, error: MessageCorrupt) -> None:
        """Answer a malformed order that still shows whose it is; count all of them."""
        remedy = str(error.fields.get("remedy", ""))
        self._scheduler.reject_malformed(
            client_id, _request_id_of(frame), InvalidRequest(error.message, remedy=remedy)
        )

    def _account(self, is_due: bool) -> None:
        """One log line for each request that ended; now and then the numbers on the board."""
        finished = self._scheduler.take_finished()
        for request in finished:
            self._journal.finished(request)
        line = self._context.line
        line.tick(len(finished))
        if is_due:
            self._account_s = monotonic_s() + ACCOUNT_S
            counters = self._counters()
            for counter, value in counters.items():
                line.set(counter, value)
            self._journal.look(counters)
        else:
            self._tick_wait_s = min(self._tick_wait_s, ACCOUNT_S)  # the last change shows too

    def _counters(self) -> dict[str, int]:
        links, counters = self._workers, self._scheduler.board_counters()
        return {
            **counters,
            "corrupt_frames": counters["corrupt_frames"] + links.num_corrupt,
            "repeated_frames": links.num_repeated,
            "missed_frames": links.num_missed,
        }

    def close(self) -> None:
        """Close the sockets; spans that are not exported yet get a moment."""
        self._journal.close()
        self._clients.close()
        self._workers.close()


def _log_death(fact: WorkerDied) -> None:
    logger.info("noted that %s-%d (incarnation %d) died", fact.role, fact.index, fact.incarnation)


def frames(items: Sequence[Addressed]) -> Iterator[tuple[Addressee, list[Addressed]]]:
    """What goes to whom in one frame; to each addressee in the order of ``items``.

    Orders of one worker go together: a frame costs both sides a wake-up. Prompts go alone, since
    several may be more than a frame holds, and a tokenizer has its hands full with each.
    """
    together: dict[Addressee, list[Addressed]] = {}
    for item in items:
        addressee = _address(item)
        is_alone = isinstance(item, ToClient) or isinstance(item.message, _PROMPTS)
        if addressee in together and (is_alone or len(together[addressee]) >= MAX_IN_FRAME):
            yield addressee, together.pop(addressee)
        if is_alone:
            yield addressee, [item]
        else:
            together.setdefault(addressee, []).append(item)
    yield from together.items()


def _is_knock(item: Addressed) -> bool:
    """Whether the message answers nothing and is sent only to see whether it can be."""
    return isinstance(item.message, HealthReport) and not item.message.request_id


def _address(item: Addressed) -> Addressee:
    if isinstance(item, ToClient):
        return "clients", item.client_id
    if isinstance(item, ToWorker):
        return "workers", item.name.encode()
    return "workers", SUPERVISOR_IDENTITY


def _request_id_of(frame: bytes) -> bytes | None:
    try:
        fields = msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, RecursionError):
        return None
    request_id = fields.get("request_id") if isinstance(fields, dict) else None
    is_whole = isinstance(request_id, bytes) and len(request_id) == ID_BYTES
    return request_id if is_whole else None


def _count(spec: WorkerSpec, role: str) -> int:
    return sum(name.startswith(f"{role}-") for name in spec.worker_names)
