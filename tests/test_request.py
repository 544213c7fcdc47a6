from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InvalidRequest
from hybridgen.request import (
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
    ChatMessage,
    ChatPrompt,
    FinishReason,
    Grammar,
    IdsPrompt,
    SamplingParams,
    TextPrompt,
    as_prompt,
    check_timeout,
)

BIG = 10**6
NOT_FINITE = (math.nan, math.inf, -math.inf)
OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "temperature": (-1.0, 100.5, BIG, *NOT_FINITE),
    "top_k": (-2, 2**31, 2**63),
    "top_p": (0.0, -1.0, 1.01, *NOT_FINITE),
    "min_p": (-0.1, 1.1, *NOT_FINITE),
    "repetition_penalty": (0.0, -1.0, 101.0, *NOT_FINITE),
    "presence_penalty": (-2.1, 2.1, *NOT_FINITE),
    "frequency_penalty": (-2.1, 2.1, *NOT_FINITE),
    "seed": (-1, 2**64),
    "max_tokens": (0, -1, 2**31),
    "min_tokens": (-1, 2**31),
    "logprobs": (-1, 21, BIG),
}
IN_RANGE: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 1e-6, 1.0, 100.0),
    "top_k": (-1, 0, 1, 2**31 - 1),
    "top_p": (1e-9, 0.5, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 1.0, 100.0),
    "presence_penalty": (-2.0, 0.0, 2.0),
    "frequency_penalty": (-2.0, 0.0, 2.0),
    "seed": (None, 0, 2**64 - 1),
    "max_tokens": (None, 1, 2**31 - 1),
    "min_tokens": (0, 5),
    "logprobs": (None, 0, 20),
}


def cases(table: dict[str, tuple[Any, ...]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in table.items() for value in values]


@pytest.mark.parametrize(("name", "value"), cases(OUT_OF_RANGE))
def test_a_value_out_of_range_is_refused_by_name_with_value_limit_and_remedy(
    name: str, value: Any
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value}).validate()
    assert caught.value.fields["param"] == name
    assert {"value", "limit", "remedy"} <= caught.value.fields.keys()
    assert str(caught.value.fields["value"]) == str(value)


@pytest.mark.parametrize(("name", "value"), cases(IN_RANGE))
def test_a_value_in_range_passes(name: str, value: Any) -> None:
    SamplingParams(**{name: value}).validate()


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    SamplingParams(min_tokens=3, max_tokens=3).validate()
    with pytest.raises(InvalidRequest, match="min_tokens"):
        SamplingParams(min_tokens=4, max_tokens=3).validate()


@pytest.mark.parametrize(
    "stop", [("",), ("x" * 257,), ("é" * 129,), ("a", "b", "c", "d", "e"), ("\ud800" * 100,)]
)
def test_stop_strings_beyond_their_limits_are_refused(stop: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="stop"):
        SamplingParams(stop=stop).validate()


def test_a_stop_string_that_no_utf8_can_carry_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
        SamplingParams(stop=("a\ud800",)).validate()
    assert caught.value.fields["param"] == "stop"


@pytest.mark.parametrize(
    "values", [{"max_tokens": 10**400}, {"seed": -(10**5000)}, {"stop_token_ids": (10**5000,)}]
)
def test_an_integer_of_any_length_is_refused_with_an_error_that_can_be_shown(
    values: dict[str, Any],
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**values).validate()
    assert "bits" in str(caught.value)


@pytest.mark.parametrize("pattern", ["", "x" * 257, "é" * 129, "a\ud800"])
def test_a_stop_regex_beyond_its_limits_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="stop_regex"):
        SamplingParams(stop_regex=pattern).validate()
    SamplingParams(stop_regex="é" * 128).validate()


def test_stop_strings_at_their_limits_pass() -> None:
    SamplingParams(stop=("é" * 128, "x" * 256, ".", "\n")).validate()


@pytest.mark.parametrize("token_id", [-1, 100, 10**12])
def test_token_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    for params in (
        SamplingParams(stop_token_ids=(token_id,)),
        SamplingParams(logit_bias={token_id: 1.0}),
    ):
        with pytest.raises(InvalidRequest, match="vocabulary"):
            params.validate(vocab_size=100)
    SamplingParams(stop_token_ids=(99,), logit_bias={0: -100.0, 99: 100.0}).validate(100)


@pytest.mark.parametrize("bias", [-100.1, 1000.0, math.nan, math.inf])
def test_biases_out_of_range_are_refused(bias: float) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        SamplingParams(logit_bias={1: bias}).validate()


def test_too_many_stop_ids_or_biases_are_refused() -> None:
    ids = range(1000)
    SamplingParams(stop_token_ids=tuple(ids[:MAX_STOP_TOKEN_IDS])).validate()
    SamplingParams(logit_bias=dict.fromkeys(ids[:MAX_LOGIT_BIAS], 1.0)).validate()
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        SamplingParams(stop_token_ids=tuple(ids[: MAX_STOP_TOKEN_IDS + 1])).validate()
    with pytest.raises(InvalidRequest, match="logit_bias"):
        SamplingParams(logit_bias=dict.fromkeys(ids[: MAX_LOGIT_BIAS + 1], 1.0)).validate()


@given(value=st.floats(allow_nan=True, allow_infinity=True))
def test_validate_accepts_exactly_the_documented_top_p(value: float) -> None:
    is_valid = 0.0 < value <= 1.0
    try:
        SamplingParams(top_p=value).validate()
    except InvalidRequest:
        assert not is_valid
    else:
        assert is_valid


@pytest.mark.parametrize(
    ("given_prompt", "expected"),
    [
        ("text", TextPrompt("text")),
        ("", TextPrompt("")),
        ([1, 2], IdsPrompt([1, 2])),
        ((3,), IdsPrompt([3])),
        (range(3), IdsPrompt([0, 1, 2])),
        ([{"role": "user", "content": "hi"}], ChatPrompt([ChatMessage("user", "hi")])),
        ([ChatMessage("user", "hi")], ChatPrompt([ChatMessage("user", "hi")])),
        (TextPrompt("as it is"), TextPrompt("as it is")),
    ],
)
def test_a_prompt_may_be_written_in_many_ways(given_prompt: Any, expected: Any) -> None:
    assert as_prompt(given_prompt) == expected


@pytest.mark.parametrize(
    "bad",
    [
        None,
        5,
        [],
        b"bytes",
        [True, False],
        [1, "two"],
        [1.5],
        [["nested"]],
        np.array([1, 2, 3]),
        {"role": "user", "content": "hi"},
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": "hi", "name": 5}],
        [{"role": "user", "content": "hi"}, 5],
    ],
)
def test_what_is_no_prompt_is_refused_with_a_remedy(bad: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        as_prompt(bad)
    assert "remedy" in caught.value.fields


def test_finish_reasons_have_public_names_and_fixed_numbers() -> None:
    assert [(reason.value, reason.public_name) for reason in FinishReason] == [
        (0, None),
        (1, "stop"),
        (2, "length"),
        (3, "stop"),
        (4, "cancelled"),
        (5, "error"),
    ]


def test_sampling_parameters_are_frozen_and_refuse_unknown_fields() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().seed = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]
    with pytest.raises(msgspec.ValidationError, match="best_of"):
        msgspec.convert({"best_of": 2}, SamplingParams)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.nan, math.inf, 1e9, 10**400, "5", True])
def test_a_deadline_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout_s"):
        check_timeout(timeout_s)


def test_a_deadline_may_be_left_out() -> None:
    check_timeout(None)
    check_timeout(0.5)


@pytest.mark.parametrize(
    ("grammar", "param"),
    [
        (Grammar("regex", "", "mine"), "mine"),
        (Grammar("lark", "a" * (MAX_GRAMMAR_BYTES + 1)), "grammar"),
        (Grammar("json_object", "x"), "grammar"),
        (Grammar("regex", "\ud800", "mine"), "mine"),
    ],
)
def test_a_grammar_that_is_none_is_refused_by_its_name(grammar: Grammar, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(grammar=grammar).validate()
    assert error.value.fields["param"] == param


def test_a_grammar_ends_its_text_whatever_the_model_would_do() -> None:
    grammar = Grammar.json_schema({"type": "object"})
    SamplingParams(grammar=grammar).validate()
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(grammar=grammar, ignore_eos=True).validate()
    assert error.value.fields["param"] == "ignore_eos"
