"""The part of a tree that a decode step needs: segments, real sampler processes, one gpu process.

The gpu process is this one, so that its engine can be measured; the coscheduler is played by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from hybridgen.config import Config
from hybridgen.ipc.channel import SendResult
from hybridgen.ipc.control import ControlSocket, control_pair
from hybridgen.ipc.doorbell import Doorbell
from hybridgen.ipc.runtime_dir import Endpoints, RuntimeDir
from hybridgen.ipc.slot_table import SlotState, SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.ipc.worker_links import WorkerLinks
from hybridgen.launch.segment_plan import (
    DEVICE_CUT_CAPACITY,
    DEVICE_RING_DEPTH,
    TreeGeometry,
    plan_segments,
)
from hybridgen.launch.segments import TreeSegments
from hybridgen.messages import (
    ChildFact,
    Decoder,
    JoinBatch,
    RetireSlot,
    StepReport,
    WorkerAttached,
    WorkerFailed,
    WorkerReady,
    WorkerSpec,
    encode,
)
from hybridgen.request import SamplingParams
from hybridgen.sampling import parameters
from hybridgen.workers.lifecycle import WorkerContext

INSTANCE = 7
START_LIMIT_S = 30.0

_decode_fact = Decoder(ChildFact)


class BenchTree:
    """Use as a context manager.

    Args:
        config: resolved; ``pools.num_samplers`` processes are started.
        vocab_size, max_model_len: of the model.
        path: for the sockets.
    """

    def __init__(self, config: Config, vocab_size: int, max_model_len: int, path: Path) -> None:
        num_samplers = config.pools.num_samplers
        samplers = [f"sampler-{index}" for index in range(num_samplers)]
        self.names = ["supervisor-0", "coscheduler-0", "gpu-0", *samplers, "detokenizer-0"]
        self._config = config
        self._runtime_dir = RuntimeDir.create(path, "bench")
        self._bell = Doorbell.create()
        num_rows = config.scheduler.max_num_seqs
        geometry = TreeGeometry(
            num_slots=num_rows,
            max_model_len=max_model_len,
            max_rows=num_rows,
            vocab_size=vocab_size,
            num_lanes=num_samplers,
            num_processes=len(self.names),
            ring_depth=DEVICE_RING_DEPTH,
            cut_capacity=DEVICE_CUT_CAPACITY,
        )
        self.segments = TreeSegments(plan_segments(geometry), geometry, INSTANCE)
        endpoints = Endpoints(self._runtime_dir.path)
        self._links = WorkerLinks(endpoints.workers, 1, ["gpu-0"])
        self._children: list[subprocess.Popen[bytes]] = []
        self._controls: list[ControlSocket] = []
        for name in samplers:
            self._start(name)
        self._own, theirs = control_pair()
        self.context = WorkerContext(self._spec("gpu-0"), theirs)
        self.slots = SlotTable(self.context.segment("slots").buf)
        self.tokens = TokenStore(self.context.segment("tokens").buf)
        for control in self._controls:
            self._await_ready(control)
        self._num_blocks_given = 0
        self.finished: set[int] = set()
        self.retired: set[int] = set()

    def __enter__(self) -> BenchTree:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.kill()
            child.wait()
        self._links.close()
        self._runtime_dir.remove()

    def fill(self, slot: int, params: SamplingParams, num_tokens: int) -> None:
        """Put a request with a prompt of that length into a slot."""
        slots = self.slots
        epoch = slots.load(slot, SlotWord.EPOCH) + 1
        slots.clear_worker_lines(slot)
        parameters.pack(params, (0,), slot + 1, slots.parameters(slot))
        slots.store(slot, SlotWord.EPOCH, epoch)
        slots.store(slot, SlotWord.PROMPT_LEN, num_tokens)
        slots.store(slot, SlotWord.MAX_LEN, slots.max_model_len)
        self.tokens.write(slot, 0, [(7 * slot + i) % 512 for i in range(num_tokens)])
        slots.store(slot, SlotWord.STATE, SlotState.RUNNING)

    def join(self, slot: int, num_cached: int, blocks: list[int]) -> None:
        """Let the request in a slot run."""
        load = self.slots.load
        epoch, num_tokens = load(slot, SlotWord.EPOCH), load(slot, SlotWord.PROMPT_LEN)
        self._send(JoinBatch(slot, epoch, 0, num_tokens, num_cached, blocks))

    def await_ring(self) -> None:
        """Wait until the gpu process has introduced itself: before, no order reaches it."""
        until_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until_s:
            arrival = self._links.receive()
            if arrival is not None and isinstance(arrival.fact, WorkerAttached):
                return
        raise SystemExit("the ring did not introduce itself")

    def retire(self, slot: int) -> None:
        """Take the request off the device."""
        self._send(RetireSlot(slot, self.slots.load(slot, SlotWord.EPOCH)))

    def read_reports(self) -> None:
        """Note who is finished or retired."""
        while (arrival := self._links.receive()) is not None:
            if isinstance(arrival.fact, StepReport):
                self.finished |= {event.slot for event in arrival.fact.finished}
                self.retired |= {event.slot for event in arrival.fact.retired}
        self._bell.clear()

    def num_generated(self, slot: int) -> int:
        """Tokens of the request in a slot."""
        return self.slots.load(slot, SlotWord.GENERATED)

    def sampling_ns(self) -> int:
        """Time that all samplers together have worked."""
        lines = [index for index, name in enumerate(self.names) if name.startswith("sampler-")]
        board = self.segments.board
        return sum(board.snapshot(line).counters["sampling_ns"] for line in lines)

    def _send(self, message: JoinBatch | RetireSlot) -> None:
        if self._links.send("gpu-0", message) is not SendResult.SENT:
            raise SystemExit(f"{message} did not go out")

    def _spec(self, name: str) -> WorkerSpec:
        role, _, index = name.partition("-")
        return WorkerSpec(
            role=role,
            index=int(index),
            incarnation=1,
            instance="bench",
            entry=f"hybridgen.workers.{role}:run",
            supervisor_pid=os.getpid(),
            config=self._config,
            model_path="",
            runtime_dir=str(self._runtime_dir.path),
            segment_fds=dict(self.segments.fds),
            doorbell_fds={"detokenizer-0": self._bell.fileno()},
            worker_names=self.names,
            board_index=self.names.index(name),
        )

    def _start(self, name: str) -> None:
        ours, theirs = control_pair()
        fds = [*self.segments.fds.values(), self._bell.fileno(), theirs.fileno()]
        command = [sys.executable, "-P", "-m", "hybridgen.workers", str(theirs.fileno())]
        self._children.append(subprocess.Popen(command, pass_fds=fds))
        theirs.close()
        ours.send(encode(self._spec(name)))
        self._controls.append(ours)

    def _await_ready(self, control: ControlSocket) -> None:
        while (received := control.receive(START_LIMIT_S)) is not None:
            fact = _decode_fact(received[0])
            if isinstance(fact, WorkerFailed):
                raise SystemExit(f"a sampler did not start: {fact.traceback}")
            if isinstance(fact, WorkerReady):
                return
        raise SystemExit("a sampler did not start in time")
