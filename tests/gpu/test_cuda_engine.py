"""The CUDA engine against float64 arithmetic in plain torch, and its ring with real samplers."""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridgen.config import Config, DeviceSection, PoolSection, SchedulerSection
from hybridgen.formats.mock_model import VOCAB_SIZE
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.messages import JoinBatch, StepReport
from hybridgen.models.reference import llama_logits
from hybridgen.request import SamplingParams
from hybridgen.workers import device_ring
from hybridgen.workers.device_ring import DeviceRing
from tests.models.tiny_model import random_ids, random_tensors, relative_error, tiny_config
from tests.workers.crew import Crew
from tests.workers.workplace import MAX_ROWS, Workplace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
if torch.cuda.is_available():
    from tests.gpu.direct_engine import DirectEngine, make_engine
    from tests.workers.test_device_ring import staff

SHAPES = {
    "gqa": {"head_dim": 64, "num_heads": 6, "num_kv_heads": 2},
    "mha": {"head_dim": 128, "num_heads": 2, "num_kv_heads": 2, "hidden_size": 256},
    "d96": {"head_dim": 96, "num_heads": 4, "num_kv_heads": 1, "has_qkv_bias": True},
    "bias": {"head_dim": 64, "num_heads": 4, "num_kv_heads": 4, "has_output_bias": True,
             "has_mlp_bias": True, "is_embedding_tied": False},
}  # fmt: skip
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("kind", ["torch", "triton"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", LIMITS)
def test_prefill_and_decode_equal_the_reference(shape, dtype, kind):
    config = tiny_config(**{"hidden_size": 256, "intermediate_size": 320, **SHAPES[shape]})
    tensors = random_tensors(config)
    if dtype != torch.float32:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    direct = DirectEngine(make_engine(config, tensors, dtype=dtype, kind=kind))
    rows = [random_ids(config, length, seed=length) for length in (70, 3, 33)]
    tables = np.asarray([[9, 3, 17, 1, 30, 31], [5, 6, 7, 2, 0, 8], [11, 4, 20, 21, 22, 23]])
    tables = tables.astype(np.int32)
    expected = [llama_logits(config, tensors, torch.from_numpy(ids).long()) for ids in rows]
    limit = LIMITS[dtype]
    for ids, table, right, cuts in zip(rows, tables, expected, [(40,), (), (16, 17)], strict=True):
        logits = direct.prefill(ids[:-1], table, tuple(c for c in cuts if c < len(ids) - 1))
        assert relative_error(logits, right[len(ids) - 2]) < limit
    last = np.asarray([ids[-1] for ids in rows], np.int32)
    positions = np.asarray([len(ids) - 1 for ids in rows], np.int32)
    logits = direct.decode(last, positions, tables)
    for row, right in enumerate(expected):
        assert relative_error(logits[row], right[-1]) < limit


def test_a_step_reads_the_samplers_results_and_advances_by_itself():
    config = tiny_config(head_dim=64)
    tensors = random_tensors(config)
    engine = make_engine(config, tensors)
    direct = DirectEngine(engine)
    ids = random_ids(config, 20)
    table = np.asarray([[4, 2, 9]], np.int32)
    direct.prefill(ids[:17], table[0])
    right = llama_logits(config, tensors, torch.from_numpy(ids).long())
    logits = direct.decode(ids[17:18], np.asarray([17], np.int32), table)
    assert relative_error(logits[0], right[17]) < 1e-4
    for position in (18, 19):
        engine._state.results[0, 0] = int(ids[position])
        assert relative_error(direct.step(1)[0], right[position]) < 1e-4


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    handler = signal.getsignal(signal.SIGTERM)
    config = Config(
        device=DeviceSection(device="cuda"),
        scheduler=SchedulerSection(max_num_seqs=MAX_ROWS),
        pools=PoolSection(spin_us=20),
    )
    try:
        with Workplace(tmp_path / "run", config, ring_depth=3) as workplace:
            yield workplace
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("hand_off", ["stream", "host"])
def test_the_ring_serves_greedy_texts_without_a_synchronizing_call(place, hand_off, monkeypatch):
    monkeypatch.setattr(device_ring, "IDLE_WAIT_S", 0.001)
    config = tiny_config(vocab_size=VOCAB_SIZE, head_dim=64, is_embedding_tied=False)
    tensors = random_tensors(config)
    engine = make_engine(config, tensors, max_rows=MAX_ROWS, hand_off=hand_off)
    coscheduler = place.open_coscheduler()
    ring = DeviceRing(place.context("gpu-0"), engine)
    place.adopt(ring)
    ring.introduce()
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    prompts = {slot: random_ids(config, 3 + 40 * slot, seed=slot) for slot in range(4)}
    with Crew() as crew:
        staff(place, crew, 0, 1)
        for slot, ids in prompts.items():
            place.fill_slot(slot, params, ids.tolist(), max_tokens=20)
        with synchronizing_calls_raise():
            _serve(place, ring, coscheduler, prompts)
    for slot, ids in prompts.items():
        text = place.output(slot)
        whole = torch.tensor([*ids.tolist(), *text])
        right = llama_logits(config, tensors, whole)[len(ids) - 1 : -1]
        assert len(text) == 20
        assert right.argmax(-1).tolist() == text


@contextlib.contextmanager
def synchronizing_calls_raise() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _serve(place, ring, coscheduler, prompts) -> None:
    first = 0
    for slot in prompts:
        epoch = place.slots.load(slot, SlotWord.EPOCH)
        num_tokens = place.slots.load(slot, SlotWord.PROMPT_LEN)
        num_blocks = -(-(num_tokens + 20) // 16)
        blocks = list(range(first, first + num_blocks))
        first += num_blocks
        coscheduler.send("gpu-0", JoinBatch(slot, epoch, 0, num_tokens, 0, blocks))
        for _ in range(3):
            ring.turn()
    for _ in range(5000):
        ring.turn()
        reports = coscheduler.of(StepReport)
        if {event.slot for report in reports for event in report.finished} == set(prompts):
            return
    raise AssertionError("the ring did not come there")
