"""Cuts of logits rows: records against the definition, weights and draws against native code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.ipc import _native as ipc_native
from hybridgen.models.kernels import cut as cut_door
from hybridgen.models.kernels import cut_record
from hybridgen.models.kernels.cut import CutWorkspace, cut_rows, readable_width
from hybridgen.models.kernels.exact_weight import exact_weight
from hybridgen.models.kernels.philox import uniform_of
from hybridgen.request import SamplingParams
from hybridgen.sampling import _native
from hybridgen.sampling.rng import uniform
from hybridgen.scheduler.row_parameters import PARAMETER_WORDS, RowWork
from tests.models.kernels.sampling_oracle import (
    HEAD,
    Batch,
    Row,
    random_logits,
    scale_of,
    weights_of,
)

NONE, CANDIDATES = 0, 1
PLAIN = SamplingParams(temperature=0.8)
UNTOUCHED = 0x5A


@triton.jit
def weight_kernel(value, top, scale, out, BLOCK: tl.constexpr):  # noqa: N803
    i = tl.arange(0, BLOCK)
    tl.store(out + i, exact_weight(tl.load(value + i), tl.load(top), tl.load(scale)))


@triton.jit
def uniform_kernel(words, out):
    draw = uniform_of(tl.load(words), tl.load(words + 1), tl.load(words + 2))
    tl.store(out, draw)


def smooth(vocab: int, seed: int = 0, spread: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, vocab).astype(np.float32)


def cut_one(logits: np.ndarray, params: SamplingParams = PLAIN, capacity: int = 64):
    batch = Batch([Row(logits, params)], capacity)
    batch.cut()
    return batch.record(0)


def check(record, logits: np.ndarray, params: SamplingParams) -> None:
    """Every id whose logit reaches the threshold, in order of ids, and the exact total."""
    assert record.state == CANDIDATES
    assert record.top == logits.max()
    assert -np.inf < record.threshold <= record.top
    assert record.ids.tolist() == np.flatnonzero(logits >= record.threshold).tolist()
    assert np.array_equal(record.values, logits[record.ids])
    scale = scale_of(params)
    assert record.scale == scale
    with np.errstate(all="ignore"):
        weights = weights_of(logits, logits.max(), scale).astype(np.float64)
    assert record.total == (weights.sum() if scale else 0)


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 2.0, 100.0])
def test_weights_are_those_of_the_sampler(temperature: float) -> None:
    logits = np.concatenate([smooth(3000, spread=8.0), np.full(8, -np.inf, np.float32)])
    logits = np.append(logits, np.linspace(-90, 30, 4096 - len(logits), dtype=np.float32))
    top, scale = logits.max(), scale_of(SamplingParams(temperature=temperature))
    native, ours = np.empty_like(logits), torch.empty(len(logits))
    _native.weights(logits, float(top), temperature, native)
    weight_kernel[(1,)](
        torch.from_numpy(logits), torch.tensor([top]), torch.tensor([scale]), ours,
        BLOCK=len(logits), enable_fp_fusion=False,
    )  # fmt: skip
    assert np.array_equal(ours.numpy().view(np.int32), native.view(np.int32))
    assert np.array_equal(weights_of(logits, top, scale), native)


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 7), (2**64 - 1, 2**31 - 1), (2**63, 5)])
def test_the_draw_is_that_of_the_sampler(seed: int, position: int) -> None:
    words = np.asarray([seed & 0xFFFFFFFF, seed >> 32, position], np.uint32).view(np.int32)
    out = torch.empty(1, dtype=torch.float64)
    uniform_kernel[(1,)](torch.from_numpy(words), out)
    assert float(out) == uniform(seed, position)


@pytest.mark.parametrize("vocab", [1, 7, 63, 64, 65, 500, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_record_holds_all_that_reach_its_threshold(vocab: int, temperature: float) -> None:
    params, logits = SamplingParams(temperature=temperature), smooth(vocab, vocab)
    check(cut_one(logits, params), logits, params)


@pytest.mark.parametrize("seed", range(24))
def test_rows_of_every_shape_are_cut_or_left_to_the_whole_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, 1500)
    record = cut_one(logits)
    if record.state == CANDIDATES:
        check(record, logits, PLAIN)
    else:
        tops = np.count_nonzero(logits == logits.max())
        assert len(record.ids) == 0
        assert not np.isfinite(logits.max()) or tops > 64


@pytest.mark.parametrize("vocab", [1 << 14, 20_001, 1 << 19])
def test_smooth_rows_give_between_a_quarter_and_all_of_the_capacity(vocab: int) -> None:
    logits = smooth(vocab)
    record = cut_one(logits)
    check(record, logits, PLAIN)
    assert 64 / 4 <= len(record.ids) <= 64


def test_all_finite_logits_of_a_small_vocabulary_are_candidates() -> None:
    logits = smooth(60)
    logits[10:40] = -np.inf
    record = cut_one(logits)
    check(record, logits, PLAIN)
    assert len(record.ids) == 30


def test_the_threshold_rises_until_candidates_fit() -> None:
    logits = np.round(smooth(4000))  # few values, each many times
    check(cut_one(logits), logits, PLAIN)
    logits = np.zeros(4000, np.float32)
    logits[::128] = 1.0  # one in every other block, and the rest all equal
    check(cut_one(logits), logits, PLAIN)


def test_more_equal_logits_than_fit_leave_no_cut() -> None:
    record = cut_one(np.zeros(4000, np.float32))
    assert (record.state, len(record.ids), record.top) == (NONE, 0, 0)
    assert record.step == 7


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 70, 2999])
def test_a_row_with_a_bad_logit_is_not_cut(bad: float, place: int) -> None:
    logits = smooth(3000)
    logits[place] = bad
    assert cut_one(logits).state == NONE
    assert cut_one(np.full(3000, -np.inf, np.float32)).state == NONE


def test_many_rows_give_the_same_records_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(smooth(3000, seed), PLAIN) for seed in range(3)]
    few, many = Batch(rows), Batch(rows)
    few.cut()
    monkeypatch.setattr(cut_door, "_MIN_SPLIT_ROWS", 1)
    many.cut()
    assert torch.equal(few.records, many.records)
    many.records.fill_(UNTOUCHED)
    many.cut()  # finds the counters as the first left them
    assert torch.equal(few.records, many.records)


def test_rows_without_the_flag_are_left_alone() -> None:
    batch = Batch([Row(smooth(300), PLAIN), Row(smooth(300), PLAIN)])
    batch.params[0] = 0
    batch.cut()
    assert (batch.records[0] == UNTOUCHED).all()
    assert batch.record(1).state == CANDIDATES


def test_rows_that_the_device_chooses_for_get_no_record_yet() -> None:
    batch = Batch([Row(smooth(300), PLAIN), Row(smooth(300), PLAIN)])
    batch.params[1, 7] = int(RowWork.CUT)
    batch.cut(is_choosing=True)
    assert (batch.records[0] == UNTOUCHED).all()
    check(batch.record(1), smooth(300), PLAIN)


def test_words_and_bytes_are_those_of_the_layout() -> None:
    layout = ipc_native.layout()
    fields = {name.partition(".")[2]: at for name, at in layout.items() if "hg_cut." in name}
    assert fields == {name: HEAD.fields[name][1] for name in fields}
    assert len(fields) == 9
    assert layout["hg_cut.urgent"] == cut_record.URGENT_BYTE.value
    assert layout["hg_cut"] == HEAD.itemsize == cut_record.HEAD_BYTES.value
    assert cut_record.PARAMETER_WORDS.value == PARAMETER_WORDS
    assert cut_record.ROW_CUT.value == RowWork.CUT
    assert cut_record.ROW_CHOOSE.value == RowWork.CHOOSE


def test_padding_is_read_only_where_there_is_some() -> None:
    padded = torch.zeros(2, 48)
    assert readable_width(padded[:, :40]) == 48
    assert readable_width(padded[:1, :40]) == 48
    assert readable_width(torch.zeros(2, 40)) == 40
    assert readable_width(padded.flatten()[:90].view(2, 45)) == 45


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("logits", {"logits": torch.zeros(2, 299)}),
        ("logits", {"logits": torch.zeros(2, 300, dtype=torch.float64)}),
        ("logits", {"logits": torch.zeros(300, 2).T}),
        ("rows", {"logits": torch.zeros(4, 300), "params": torch.zeros(4, 8, dtype=torch.int32)}),
        ("params", {"params": torch.zeros(2, 7, dtype=torch.int32)}),
        ("params", {"params": torch.zeros(2, 8)}),
        ("record", {"record": 4}),
    ],
)
def test_operands_that_do_not_fit_are_refused(name: str, change: dict[str, object]) -> None:
    operands = {
        "logits": torch.zeros(2, 300),
        "params": torch.zeros(2, 8, dtype=torch.int32),
        "step": 1,
        "record": 64,
        "workspace": CutWorkspace(3, 300, 64, "cpu"),
        **change,
    }
    with pytest.raises(InternalError, match=name):
        cut_rows(**operands)


@pytest.mark.parametrize(
    ("vocab", "capacity"), [(0, 64), ((1 << 19) + 1, 64), (9, 0), (9, 12), (9, 2048)]
)
def test_sizes_that_cannot_be_cut_are_refused(vocab: int, capacity: int) -> None:
    with pytest.raises(InternalError, match="cannot be cut"):
        CutWorkspace(1, vocab, capacity, "cpu")
