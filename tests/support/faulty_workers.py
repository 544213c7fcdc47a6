"""Workers that a certain request kills: the one with the seed ``POISON_SEED``, or that prompt.

``FAULTY`` says whose entry to spoil and how: ``tokenizer``, ``detokenizer``, ``sampler``,
``gpu-prefill``, ``gpu-decode``; or ``gpu-lost``: the device fails once, in the first incarnation;
or ``device-…``, see ``tests/gpu/failing_device.py``.
Where ``WORKERS_PROXY`` names an address, the workers look for their coscheduler there.
"""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from hybridgen.config import Config
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.logit_ring import POISON
from hybridgen.ipc.runtime_dir import Endpoints
from hybridgen.ipc.slot_table import SlotTable
from hybridgen.messages import WorkerSpec
from hybridgen.sampling import parameters
from hybridgen.workers.lifecycle import Entry

FAULTY = os.environ.get("FAULTY", "")
POISON_SEED = 666
POISON_TEXT = "poison"
#: Steps before the device fails.
NUM_GOOD_STEPS = 40

if WORKERS_PROXY := os.environ.get("WORKERS_PROXY", ""):
    Endpoints.workers = property(lambda _: WORKERS_PROXY)  # type: ignore[method-assign, assignment]


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def is_poison(slots: SlotTable, slot: int) -> bool:
    _, _, seed = parameters.unpack(slots.parameters(slot), slots.grammar(slot))
    return seed == POISON_SEED


def tokenizer(spec: WorkerSpec, control: ControlSocket) -> int:
    from hybridgen.workers import tokenizer as module

    encode, probe = module.Tokenizer._encode, module.Tokenizer._probe

    def check(order: Any) -> None:
        if POISON_TEXT in str(order.prompt):
            die()

    def checked_encode(self: Any, order: Any) -> Any:
        check(order)
        return encode(self, order)

    def checked_probe(self: Any, order: Any) -> Any:
        check(order)
        return probe(self, order)

    if FAULTY == "tokenizer":
        module.Tokenizer._encode = checked_encode  # type: ignore[method-assign]
        module.Tokenizer._probe = checked_probe  # type: ignore[method-assign]
    return module.run(spec, control)


def prepare_detokenizer(_model_path: str, _config: Config) -> Entry:
    return detokenizer


def detokenizer(spec: WorkerSpec, control: ControlSocket) -> int:
    from hybridgen.text.delivery import Delivery
    from hybridgen.workers import detokenizer as module

    advance = Delivery.advance

    def checked(self: Any, now_s: float) -> int:
        num_new = advance(self, now_s)
        if is_poison(self._views.slots, self.slot) and self._stream.num_tokens > 3:
            die()
        return num_new

    if FAULTY == "detokenizer":
        Delivery.advance = checked  # type: ignore[method-assign]
    return module.run(spec, control)


def prepare_sampler(_model_path: str, _config: Config) -> Entry:
    return sampler


def sampler(spec: WorkerSpec, control: ControlSocket) -> int:
    from hybridgen.workers import sampler as module

    take = module.Sampler._take

    def checked(self: Any, spin_us: int, timeout_us: int) -> Any:
        latest = self._ring.wait_published(self._seen, spin_us, timeout_us)
        if latest not in (POISON, self._seen):
            slots = SlotTable(self._slots)
            if any(
                row.lane == self._lane and _dies_of(slots, row) for row in self._ring.rows(latest)
            ):
                die()
        return take(self, spin_us, 0)

    if FAULTY == "sampler":
        module.Sampler._take = checked  # type: ignore[method-assign]
    return module.run(spec, control)


def _dies_of(slots: SlotTable, row: Any) -> bool:
    from hybridgen.ipc.slot_table import SlotWord

    if slots.load(row.slot, SlotWord.END_REASON):
        return False  # the native code looks at this first, and touches nothing else of it
    return is_poison(slots, row.slot) and slots.load(row.slot, SlotWord.GENERATED) > 3


def gpu(spec: WorkerSpec, control: ControlSocket) -> int:
    from hybridgen.workers import gpu as module

    chunk, decode = module.ComputeRing._run_chunk, module.ComputeRing._decode
    slots_of: dict[int, SlotTable] = {}

    def slots(ring: Any) -> SlotTable:
        return slots_of.setdefault(id(ring), SlotTable(ring._context.segment("slots").buf))

    def checked_chunk(self: Any, piece: Any, logits: Any) -> None:
        self._context.line.serve(piece.slot, piece.epoch)
        if is_poison(slots(self), piece.slot):
            die()
        chunk(self, piece, logits)

    def checked_decode(self: Any, logits: Any) -> None:
        self._batch.decode_rows()
        rows = self._batch._arrays.headers["slot"][: self._batch._num_frozen]
        if any(is_poison(slots(self), int(slot)) for slot in rows):
            die()
        decode(self, logits)

    def failing_decode(self: Any, logits: Any) -> None:
        if spec.incarnation == 1 and self._ring.latest >= NUM_GOOD_STEPS:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nMore text")
        decode(self, logits)

    if FAULTY == "gpu-prefill":
        module.ComputeRing._run_chunk = checked_chunk  # type: ignore[method-assign]
    if FAULTY == "gpu-decode":
        module.ComputeRing._decode = checked_decode  # type: ignore[method-assign]
    if FAULTY == "gpu-lost":
        module.ComputeRing._decode = failing_decode  # type: ignore[method-assign]
    if FAULTY.startswith("device-") and spec.incarnation == 1:
        from tests.gpu import failing_device

        failing_device.arm(FAULTY)
    return module.run(spec, control)
