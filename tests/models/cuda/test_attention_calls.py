"""Which call is made for what, with plain torch in the place of both libraries."""

from __future__ import annotations

import logging

import pytest
import torch

from hybridgen.models.cuda import attention_calls
from hybridgen.models.cuda.attention_calls import (
    Attended,
    CudnnCalls,
    FlashCalls,
    PlainCalls,
    try_cudnn,
)
from hybridgen.models.cuda.prompt_attention import split_past, window_of
from hybridgen.models.reference import attention
from tests.models.tiny_model import relative_error

MOST, PAST = 32, 64
SCALE = 16**-0.5


class Cudnn:
    """Stands in for the library: which shapes were asked for."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int, bool]] = []
        self.factor = 1.0
        self.error: Exception | None = None

    def __call__(self, query, keys, values, scale, *, is_causal):
        if self.error is not None:
            raise self.error
        self.shapes.append((len(query), query.shape[2], keys.shape[2], is_causal))
        parts = [
            attention_calls._attend_plainly(q.transpose(0, 1), k, v, scale, is_causal=is_causal)
            for q, k, v in zip(query, keys, values, strict=True)
        ]
        sums = torch.stack([part.sums for part in parts])[..., None]
        return Attended(torch.cat([part.out for part in parts]), sums * self.factor)


@pytest.fixture
def cudnn(monkeypatch):
    stand_in = Cudnn()
    monkeypatch.setattr(attention_calls, "_call_cudnn", stand_in)
    for name in ("within", "over", "merge"):
        plain = getattr(PlainCalls, name)
        monkeypatch.setattr(FlashCalls, name, plain)
    return stand_in


def make_heads(num_rows: int = MOST) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randn(num_rows, 8, 16, generator=generator)
    query, keys, values = qkv.split([4, 2, 2], 1)
    return query, keys, values


def make_past() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    keys, values = torch.randn(2, 2, PAST, 16, generator=generator)
    return keys, values


def test_sequences_see_nothing_of_their_neighbours():
    query, keys, values = make_heads(11)
    offsets = torch.tensor([0, 3, 4, 11], dtype=torch.int32)
    out, sums = PlainCalls(SCALE).within(query, keys, values, offsets, [3, 1, 7])
    for first, stop in ((0, 3), (3, 4), (4, 11)):
        rows = slice(first, stop)
        wanted = attention(*(x[rows].double() for x in (query, keys, values)))
        assert relative_error(out[rows].flatten(), wanted.flatten()) < 1e-5
    assert sums.shape == (4, 11)


@pytest.mark.parametrize(
    ("lengths", "planned"),
    [([16], True), ([32], True), ([8, 8, 8, 8], True), ([16, 16], False), ([20, 12], False),
     ([24], False), ([8, 8, 8, 9], False)],
)  # fmt: skip
def test_only_prepared_shapes_go_to_cudnn(cudnn, lengths, planned):
    calls = try_cudnn(make_heads(), make_past(), [(1, 16), (1, 32), (4, 8)], (), 16, scale=SCALE)
    cudnn.shapes.clear()
    heads = make_heads(sum(lengths))
    offsets = torch.zeros(0, dtype=torch.int32)
    found = calls.within(*heads, offsets, lengths)
    assert bool(cudnn.shapes) == planned
    wanted = PlainCalls(SCALE).within(*heads, offsets, lengths)
    assert relative_error(found.out, wanted.out.double()) < 1e-6
    first = 0
    for number, length in enumerate(lengths):
        rows = slice(first, first + length)
        assert torch.allclose(found.sums_of(number, rows), wanted.sums[:, rows], atol=1e-5)
        first += length


def test_prepared_shapes_over_what_came_before_go_to_cudnn(cudnn):
    calls = try_cudnn(make_heads(), make_past(), [], (32, 16), 8, scale=SCALE)
    prepared = set(cudnn.shapes)
    assert prepared == {(1, n, m, False) for n in (8, 16, 24, 32) for m in (32, 16)}
    cudnn.shapes.clear()
    keys, values = make_past()
    for num_rows, num_keys in ((8, 16), (24, 32), (9, 16), (8, 17), (8, 48)):
        calls.over(make_heads()[0][:num_rows], keys[:, :num_keys], values[:, :num_keys])
    assert cudnn.shapes == [(1, 8, 16, False), (1, 24, 32, False)]


@pytest.mark.parametrize("equal", [[(1, 16)], []])
@pytest.mark.parametrize("problem", ["error", "results"])
def test_without_cudnn_the_flash_kernel_does_it_all(cudnn, equal, problem, caplog):
    if problem == "error":
        cudnn.error = RuntimeError("no valid plan")
    else:
        cudnn.factor = 1.1
    with caplog.at_level(logging.WARNING):
        calls = try_cudnn(make_heads(), make_past(), equal, (16,), 16, scale=SCALE)
    assert type(calls) is FlashCalls
    assert calls.segments == ()
    assert "not by cuDNN's" in caplog.text


def test_what_was_chosen_is_logged(cudnn, caplog):
    with caplog.at_level(logging.INFO):
        calls = try_cudnn(make_heads(), make_past(), [(1, 16)], (16,), 16, scale=SCALE)
    assert isinstance(calls, CudnnCalls)
    assert f"by cuDNN for {len(set(cudnn.shapes))} shapes" in caplog.text


def test_what_came_before_is_cut_into_segments_and_a_rest():
    assert split_past(70, (32, 16)) == [(0, 32), (32, 64), (64, 70)]
    assert split_past(48, (32, 16)) == [(0, 32), (32, 48)]
    assert split_past(7, ()) == [(0, 7)]


def test_windows_are_whole_and_within_the_rows_there_are():
    assert window_of(slice(5, 15), 8, 64) == slice(5, 21)
    assert window_of(slice(50, 64), 16, 64) == slice(48, 64)
    assert window_of(slice(3, 60), 48, 64) == slice(0, 64)
