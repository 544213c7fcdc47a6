"""Sums of weights are exact: no order, grouping, neighbour or instruction set shows in them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, reference
from tests.sampling.rows import VARIANTS, Floats, Row, random_logits

MAX_VOCAB = 1 << 19
GRID = 2.0**-34


def language_like(rng: np.random.Generator, vocab_size: int) -> Floats:
    """A few likely tokens far above the rest, whose weights are tiny but many."""
    logits = rng.normal(0, 2.5, vocab_size).astype(np.float32)
    logits[rng.integers(vocab_size, size=20)] += rng.uniform(5, 20, 20).astype(np.float32)
    return logits


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("vocab_size", [16, 255, 256, 1000, 32_000])
def test_the_total_is_the_exact_sum_of_the_weights_in_any_order(vocab_size, variant):
    rng = np.random.default_rng(vocab_size)
    for turn in range(30):
        make = language_like if turn % 2 else random_logits
        logits = make(rng, vocab_size)
        temperature = float(np.float32(rng.choice([0.2, 0.7, 1.0, 3.0])))
        exact = math.fsum(reference.weights(logits, temperature))
        assert _native.total_weight(logits, temperature, variant) == exact
        assert _native.total_weight(rng.permutation(logits), temperature, variant) == exact
        assert _native.total_weight(np.sort(logits), temperature, variant) == exact


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("exponent", [-0.0, -10.99, -11.01, -12.0, -12.02, -34.99, -35.0, -35.02])
def test_chunks_of_any_weight_add_up_exactly(exponent, variant):
    # 2^exponent around each change of method: the grid, light chunks, weightless chunks.
    rng = np.random.default_rng(3)
    logits = (math.log(2) * (exponent - rng.uniform(0, 0.02, 2048))).astype(np.float32)
    logits[0] = 0
    assert _native.total_weight(logits, 1.0, variant) == math.fsum(reference.weights(logits, 1.0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_multiples_of_two_to_the_minus_thirty_four(variant):
    logits = np.linspace(-30, 0, 1 << 16).astype(np.float32)
    out = np.empty_like(logits)
    _native.weights(logits, 0.0, 1.0, out, variant)
    steps = out.astype(np.float64) / GRID
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert out[logits < math.log(2) * -35.001].max() == 0
    assert out[logits > math.log(2) * -34.999].min() == GRID


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_largest_vocabulary_of_equal_logits_sums_exactly(variant):
    logits = np.full(MAX_VOCAB, 3.25, np.float32)
    assert _native.total_weight(logits, 1.0, variant) == MAX_VOCAB
    logits[1:] -= np.float32(math.log(2) * 30)
    exact = math.fsum(reference.weights(logits, 1.0))
    assert _native.total_weight(logits, 1.0, variant) == exact
    assert exact != float(np.float32(exact))


def test_a_larger_vocabulary_is_refused_by_value_and_limit():
    row = Row(np.zeros(MAX_VOCAB + 1, np.float32), SamplingParams())
    with pytest.raises(ValueError, match=r"524289; .* 524288"):
        row.kernel()
    with pytest.raises(ValueError, match=r"524289; .* 524288"):
        _native.total_weight(row.logits, 1.0)
    assert Row(row.logits[1:], SamplingParams(temperature=0.0)).token() == 0


def spread(logits: Floats, extra: Floats, rng: np.random.Generator) -> tuple[Floats, list[int]]:
    """Both as one row, `logits` in order at the ids given."""
    ids = np.sort(rng.choice(len(logits) + len(extra), len(logits), replace=False))
    row = np.empty(len(logits) + len(extra), np.float32)
    is_extra = np.ones(len(row), bool)
    is_extra[ids] = False
    row[ids], row[is_extra] = logits, extra
    return row, ids.tolist()


CUTS = {
    "top_k": (SamplingParams(temperature=0.8, top_k=40), 0.0),
    "top_k and top_p": (SamplingParams(temperature=0.8, top_k=40, top_p=0.9), 0.0),
    "all": (SamplingParams(temperature=0.8, top_k=40, top_p=0.97, min_p=1e-4), 0.0),
    "min_p": (SamplingParams(temperature=0.8, min_p=1e-3), 0.8 * math.log(1e-3)),
    "top_p, weightless": (SamplingParams(temperature=0.8, top_p=0.95), -0.8 * 26),
    "temperature, weightless": (SamplingParams(temperature=0.8), -0.8 * 26),
}


@pytest.mark.parametrize("name", CUTS)
@settings(max_examples=60, deadline=None)
@given(
    source=st.integers(0, 2**32),
    num_kept=st.integers(40, 700),
    num_extra=st.integers(1, 3000),
    seed=st.integers(0, 2**64 - 1),
)
def test_logits_too_low_to_be_kept_never_change_the_token(name, source, num_kept, num_extra, seed):
    params, reach = CUTS[name]
    rng = np.random.default_rng(source)
    logits = language_like(rng, num_kept)
    highest = logits.max() + reach if reach else logits.min()
    extra = (highest - 1e-3 - rng.exponential(3, num_extra)).astype(np.float32)
    row, ids = spread(logits, extra, rng)
    params = msgspec.structs.replace(params, seed=seed)
    assert Row(row, params).token() == ids[Row(logits, params).token()]
