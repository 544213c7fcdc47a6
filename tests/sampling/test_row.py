"""One row at a time: cases whose answer can be said by hand."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from hybridgen.request import SamplingParams
from hybridgen.sampling import _native
from tests.sampling.rows import VARIANTS, Row, random_row

GREEDY = SamplingParams(temperature=0.0)


def logits(*values: float, vocab_size: int | None = None, rest: float = -5.0):
    row = np.full(vocab_size or len(values), rest, np.float32)
    row[: len(values)] = values
    return row


def drawn(row: Row, num_seeds: int = 300) -> set[int]:
    params = row.params
    return {
        Row(
            row.logits,
            msgspec.structs.replace(params, seed=seed),
            row.history,
            row.prompt_len,
            row.eos_ids,
        ).token()
        for seed in range(num_seeds)
    }


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("vocab_size", [5, 64, 300, 1000])
def test_greedy_takes_the_lowest_id_among_equal_logits(vocab_size, variant):
    row = logits(vocab_size=vocab_size, rest=1.0)
    row[[0, 1]] = 0
    assert Row(row, GREEDY).token(variant) == 2
    row[vocab_size - 1] = 2
    assert Row(row, GREEDY).token(variant) == vocab_size - 1


def test_greedy_holds_both_zeros_equal():
    assert Row(logits(-1, -0.0, 0.0), GREEDY).token() == 1
    assert Row(logits(-1, 0.0, -0.0), GREEDY).token() == 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 63, 64, 255, 256, 299])
def test_nan_and_infinity_anywhere_are_a_row_error(bad, at, variant):
    row = logits(vocab_size=300)
    row[at] = bad
    assert Row(row, SamplingParams()).kernel(variant)[:2] == (-1, 1)


def test_a_row_without_a_finite_logit_is_a_row_error():
    assert Row(logits(*[-np.inf] * 70), SamplingParams()).kernel()[:2] == (-1, 1)


def test_a_row_whose_only_finite_logits_are_banned_is_a_row_error():
    row = Row(logits(-np.inf, 1.0, -np.inf), SamplingParams(min_tokens=1), eos_ids=(1,))
    assert row.kernel()[:2] == (-1, 1)


def test_minus_infinity_is_never_drawn():
    row = logits(*[-np.inf, 0.0] * 40)
    assert drawn(Row(row, SamplingParams(temperature=100.0))) <= set(range(1, 80, 2))


def test_one_hot_rows_give_their_token_under_every_setting():
    row = logits(vocab_size=500, rest=-np.inf)
    row[321] = -7
    rng = np.random.default_rng(0)
    for _ in range(100):
        params = random_row(rng, 500).params
        params = msgspec.structs.replace(params, min_tokens=0)
        assert Row(row, params).token() == 321


def test_top_k_breaks_ties_at_its_border_by_lower_id():
    row = logits(1, 1, 2, 1, 1)
    assert drawn(Row(row, SamplingParams(top_k=3))) == {0, 1, 2}


def test_top_k_breaks_ties_over_many_blocks_by_lower_id():
    row = logits(vocab_size=2000, rest=0.0)
    assert drawn(Row(row, SamplingParams(top_k=10)), 500) == set(range(10))


def test_top_p_keeps_the_shortest_run_that_reaches_its_share():
    row = logits(*np.log([0.1, 0.4, 0.3, 0.2]))
    assert drawn(Row(row, SamplingParams(top_p=0.65))) == {1, 2}
    assert drawn(Row(row, SamplingParams(top_p=0.75))) == {1, 2, 3}
    assert drawn(Row(row, SamplingParams(top_p=1e-9))) == {1}


def test_top_p_breaks_ties_at_its_border_by_lower_id():
    row = logits(vocab_size=400, rest=0.0)
    assert drawn(Row(row, SamplingParams(top_p=0.0124)), 500) == {0, 1, 2, 3, 4}


def test_top_p_counts_the_share_of_what_top_k_left():
    row = logits(*np.log([0.4, 0.3, 0.2, 0.1]))
    assert drawn(Row(row, SamplingParams(top_k=2, top_p=0.56))) == {0}
    assert drawn(Row(row, SamplingParams(top_k=2, top_p=0.58))) == {0, 1}


def test_min_p_keeps_tokens_at_least_that_fraction_as_likely_as_the_top():
    row = logits(*np.log([0.5, 0.3, 0.1, 0.06, 0.04]))
    assert drawn(Row(row, SamplingParams(min_p=0.15))) == {0, 1, 2}
    assert drawn(Row(row, SamplingParams(min_p=1.0))) == {0}


@pytest.mark.parametrize("variant", VARIANTS)
def test_min_p_may_drop_tokens_that_top_p_alone_would_need(variant):
    # The many tokens that min_p leaves weigh less together than top_p asks for: all are kept.
    row = logits(*[0.0, 0.0, -2.0] * 1000)
    for seed in range(20):
        one = Row(row, SamplingParams(top_p=0.999, min_p=0.2, seed=seed))
        assert one.token(variant) == one.oracle().token_id


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    params = msgspec.structs.replace(GREEDY, repetition_penalty=2.0)
    assert Row(logits(3, 2, -1), params, history=[0], prompt_len=1).token() == 1
    assert Row(logits(-3, -2, -3.5), params, history=[1], prompt_len=0).token() == 0


def test_presence_and_frequency_penalties_count_the_output_only():
    presence = msgspec.structs.replace(GREEDY, presence_penalty=1.0)
    frequency = msgspec.structs.replace(GREEDY, frequency_penalty=0.4)
    row = logits(2.0, 1.5)
    assert Row(row, presence, history=[0, 0], prompt_len=2).token() == 0
    assert Row(row, presence, history=[0, 0], prompt_len=1).token() == 1
    assert Row(row, frequency, history=[0, 0], prompt_len=1).token() == 0
    assert Row(row, frequency, history=[0, 0], prompt_len=0).token() == 1


def test_negative_penalties_raise_a_token_above_its_block():
    params = msgspec.structs.replace(GREEDY, presence_penalty=-2.0)
    row = logits(vocab_size=700, rest=0.0)
    assert Row(row, params, history=[650], prompt_len=0).token() == 650


def test_bias_is_added_before_penalties():
    params = msgspec.structs.replace(GREEDY, logit_bias={1: 4.0}, repetition_penalty=2.0)
    # (-1 + 4) / 2 = 1.5; the other way round it would be -1 * 2 + 4 = 2
    assert Row(logits(1.6, -1), params, history=[1], prompt_len=1).token() == 0
    assert Row(logits(1.4, -1), params, history=[1], prompt_len=1).token() == 1


def test_min_tokens_bans_end_of_text_and_stop_ids_until_reached():
    params = msgspec.structs.replace(GREEDY, min_tokens=2, stop_token_ids=(1,))
    row = logits(3, 2, 1)
    for output, token_id in (([], 2), ([5], 2), ([5, 5], 0)):
        history = [4, 4, *output]
        assert Row(row, params, history, prompt_len=2, eos_ids=(0,)).token() == token_id


def test_the_temperature_at_which_sampling_becomes_greedy_is_one_hundred_thousandth():
    row = logits(1.0, 1.00001)
    assert drawn(Row(row, SamplingParams(temperature=0.99e-5))) == {1}
    assert drawn(Row(row, SamplingParams(temperature=1e-4))) == {0, 1}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logprobs_are_of_the_logits_as_the_model_gave_them(variant):
    row = logits(*np.log([0.5, 0.25, 0.125, 0.125]))
    params = SamplingParams(temperature=0.0, logprobs=3, logit_bias={2: 50.0})
    token_id, _, logprob, top = Row(row, params).kernel(variant)
    assert token_id == 2
    assert logprob == pytest.approx(math.log(0.125), abs=1e-6)
    assert [i for i, _ in top] == [0, 1, 2]
    assert [x for _, x in top] == pytest.approx(np.log([0.5, 0.25, 0.125]), abs=1e-6)


def test_fewer_logprobs_come_back_when_fewer_logits_are_finite():
    row = logits(0.0, -np.inf, 0.0, -np.inf)
    top = Row(row, msgspec.structs.replace(GREEDY, logprobs=20)).kernel()[3]
    assert top == [(0, pytest.approx(math.log(0.5))), (2, pytest.approx(math.log(0.5)))]


def test_without_logprobs_none_are_given():
    _, _, logprob, top = Row(logits(0.0, 1.0), GREEDY).kernel()
    assert math.isnan(logprob)
    assert top == []


def test_ids_outside_the_vocabulary_are_ignored():
    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=2.0,
        presence_penalty=1.0,
        min_tokens=9,
        logit_bias={10**9: 5.0},
        stop_token_ids=(2**31 - 1,),
    )
    row = Row(logits(1, 2, 3), params, [-1, 3, 2**31 - 1], 1, (7,))
    assert row.token() == 2


def test_malformed_arguments_are_refused():
    good = (logits(1, 2), Row(logits(1), GREEDY).packed(), np.zeros(3, np.int32), 3)
    assert _native.sample_row(*good)[1] == 0
    for index, bad in enumerate((b"123", b"123", b"123", 4)):
        arguments = [*good]
        arguments[index] = bad
        with pytest.raises(ValueError, match="must be"):
            _native.sample_row(*arguments)
    with pytest.raises(ValueError, match="variant"):
        _native.sample_row(*good, 99)
    with pytest.raises(TypeError):
        _native.sample_row(*good[:3])
