"""The kernel against the oracle, on rows of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, reference
from tests.sampling.rows import VARIANTS, Row, random_logits, random_row

SMALL = [5, 6, 15, 16, 17, 63, 64, 65, 100, 255, 256, 257, 1000, 4096]


def check(row: Row, variant: int = 0) -> None:
    """The kernel's answer is the oracle's: the same token, and log-probabilities within float32."""
    expected = row.oracle()
    token_id, row_error, logprob, top = row.kernel(variant)
    if expected.token_id is None:
        assert (token_id, row_error) == (-1, 1)
        return
    assert (token_id, row_error) == (expected.token_id, 0), row.params
    if expected.logprob is not None:
        assert logprob == pytest.approx(expected.logprob, rel=1e-6, abs=1e-5)
    assert [i for i, _ in top] == [i for i, _ in expected.top]
    assert [x for _, x in top] == pytest.approx([x for _, x in expected.top], rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_kernel_agrees_with_the_oracle_on_small_vocabularies(seed):
    rng = np.random.default_rng(seed)
    for _ in range(500):
        check(random_row(rng, int(rng.choice(SMALL))))


@pytest.mark.parametrize("vocab_size", [32_000, 49_152, 128_256, 151_936, 262_208])
def test_kernel_agrees_with_the_oracle_on_large_vocabularies(vocab_size):
    rng = np.random.default_rng(vocab_size)
    for _ in range(20):
        check(random_row(rng, vocab_size))


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


def test_the_draw_takes_the_first_id_whose_running_sum_exceeds_the_target():
    four = np.asarray([0.25, 0.0, 0.5, 0.25])
    assert [reference.draw(four, u) for u in (0, 0.2499, 0.25, 0.7499, 0.75)] == [0, 0, 2, 2, 3]


def test_top_p_on_its_very_edge_keeps_no_token_more():
    kept = reference.kept_weights(np.zeros(4, np.float32), SamplingParams(top_p=0.5))
    assert kept.tolist() == [1, 1, 0, 0]
    above = reference.kept_weights(np.zeros(4, np.float32), SamplingParams(top_p=0.5000001))
    assert above.tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_within_their_documented_error(variant):
    logits = np.linspace(-80, 0, 1 << 16).astype(np.float32)
    out = np.empty_like(logits)
    _native.weights(logits, 0.0, 1.0, out, variant)
    exact = np.exp(logits.astype(np.float64))
    relative = 2e-7 + np.abs(logits.astype(np.float64)) * 2.0**-22
    assert (np.abs(out - exact) <= relative * exact + 2.0**-35).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 100.0])
def test_weights_are_the_bits_that_the_oracle_computes(variant, temperature):
    rng = np.random.default_rng(9)
    for _ in range(30):
        logits = random_logits(rng, 4096)
        out = np.empty_like(logits)
        _native.weights(logits, float(logits.max()), np.float32(temperature), out, variant)
        np.testing.assert_array_equal(out, reference.weights(logits, temperature))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_top_weighs_one_and_what_cannot_be_drawn_weighs_nothing(variant):
    logits = np.full(16, -np.inf, np.float32)
    logits[:4] = [7, 7 - 25, -3e38, 6]
    out = np.empty_like(logits)
    _native.weights(logits, 7.0, 1.0, out, variant)
    assert out[0] == 1
    assert out[3] == pytest.approx(np.exp(-1), rel=2e-7)
    assert not out[[1, 2, *range(4, 16)]].any()
