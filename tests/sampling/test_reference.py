"""The kernel against the oracle, on rows of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, reference
from tests.sampling.rows import VARIANTS, Row, random_row

SMALL = [5, 6, 15, 16, 17, 63, 64, 65, 100, 255, 256, 257, 1000, 4096]
MAX_CLOSE_SHARE = 0.005  # of the answers, those that only rounding at a boundary explains


def check(row: Row, variant: int = 0) -> bool:
    """Compare one row; True when the tokens are equal, False when a boundary explains it."""
    expected = row.oracle()
    token_id, row_error, logprob, top = row.kernel(variant)
    if expected.token_id is None:
        assert (token_id, row_error) == (-1, 1)
        return True
    assert row_error == 0
    if expected.logprob is not None and token_id == expected.token_id:
        assert logprob == pytest.approx(expected.logprob, rel=1e-6, abs=1e-5)
    assert [i for i, _ in top] == [i for i, _ in expected.top]
    assert [x for _, x in top] == pytest.approx([x for _, x in expected.top], rel=1e-6, abs=1e-5)
    if token_id == expected.token_id:
        return True
    assert row.is_close(token_id), (row.params, token_id, expected.token_id)
    return False


@pytest.mark.parametrize("seed", range(8))
def test_kernel_agrees_with_the_oracle_on_small_vocabularies(seed):
    rng = np.random.default_rng(seed)
    rows = [random_row(rng, int(rng.choice(SMALL))) for _ in range(500)]
    num_close = sum(not check(row) for row in rows)
    assert num_close <= MAX_CLOSE_SHARE * len(rows)


@pytest.mark.parametrize("vocab_size", [32_000, 49_152, 128_256, 151_936])
def test_kernel_agrees_with_the_oracle_on_large_vocabularies(vocab_size):
    rng = np.random.default_rng(vocab_size)
    rows = [random_row(rng, vocab_size) for _ in range(20)]
    num_close = sum(not check(row) for row in rows)
    assert num_close <= 2  # flat rows: 150,000 tokens in the reach of a rounding of 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_every_variant_returns_the_same_bits(seed):
    rng = np.random.default_rng(100 + seed)
    for _ in range(250):
        row = random_row(rng, int(rng.choice([*SMALL, 20_000])))
        answers = {repr(row.kernel(variant)) for variant in VARIANTS}
        assert len(answers) == 1, row.params


finite = st.floats(-50, 50, width=32) | st.just(-np.inf) | st.sampled_from([0.0, -0.0, 3e38, -3e38])


@settings(max_examples=300, deadline=None)
@given(
    logits=st.lists(finite, min_size=5, max_size=80),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.integers(0, 90),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    penalties=st.tuples(st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2)),
    history=st.lists(st.integers(0, 79), max_size=30),
    bias=st.dictionaries(st.integers(0, 79), st.floats(-100, 100), max_size=5),
    min_tokens=st.integers(0, 10),
    seed=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_kernel_agrees_with_the_oracle_on_any_row(  # noqa: PLR0917 - one per parameter
    logits, temperature, top_k, top_p, min_p, penalties, history, bias, min_tokens, seed, data
):
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalties[0],
        presence_penalty=penalties[1],
        frequency_penalty=penalties[2],
        logit_bias=bias,
        min_tokens=min_tokens,
        seed=seed,
        logprobs=3,
    )
    prompt_len = data.draw(st.integers(0, len(history)))
    check(Row(np.asarray(logits, np.float32), params, history, prompt_len, (1, 2)))


def test_accepts_refuses_a_token_away_from_the_boundary():
    z = np.asarray([0, 0, 0, 0], np.float32)
    four = reference.distribution(z, SamplingParams(temperature=1.0))
    assert [four.draw(u) for u in (0, 0.2499, 0.25, 0.9999)] == [0, 0, 1, 3]
    assert four.accepts(0, 0.25 - 1e-9)
    assert four.accepts(1, 0.25 - 1e-9)
    assert not four.accepts(1, 0.2499)
    assert not four.accepts(2, 0.2499)


def test_accepts_allows_one_more_token_only_where_top_p_falls_on_its_edge():
    z = np.asarray([0, 0, 0, 0], np.float32)
    edge = reference.distribution(z, SamplingParams(top_p=0.5))
    assert (edge.min_kept, edge.num_kept, edge.max_kept) == (2, 2, 3)
    inside = reference.distribution(z, SamplingParams(top_p=0.6))
    assert (inside.min_kept, inside.num_kept, inside.max_kept) == (3, 3, 3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_within_their_documented_error(variant):
    logits = np.linspace(-80, 0, 1 << 16).astype(np.float32)
    out = np.empty_like(logits)
    _native.weights(logits, 0.0, 1.0, out, variant)
    exact = np.exp(logits.astype(np.float64))
    allowed = 2e-7 + np.abs(logits.astype(np.float64)) * 2.0**-22
    assert (np.abs(out / exact - 1) <= allowed).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_top_weighs_one_and_what_cannot_be_drawn_weighs_nothing(variant):
    logits = np.full(16, -np.inf, np.float32)
    logits[:4] = [7, 7 - 100, -3e38, 6]
    out = np.empty_like(logits)
    _native.weights(logits, 7.0, 1.0, out, variant)
    assert out[0] == 1
    assert out[3] == pytest.approx(np.exp(-1), rel=2e-7)
    assert not out[[1, 2, *range(4, 16)]].any()
