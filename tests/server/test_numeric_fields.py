"""Every numeric key × every kind of number: the right meaning, or 400 that names the key."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import HybridGenError
from hybridgen.request import MAX_PRIORITY, IdsPrompt
from hybridgen.server.generation import Generation
from hybridgen.server.http_errors import http_status
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.schema import read_chat, read_completion

VOCAB_SIZE = 1000
LIMITS = RequestLimits(max_model_len=10**7, vocab_size=VOCAB_SIZE)
INT32 = 2**31 - 1
LITERALS = (
    *("0", "-1", str(2**31), str(2**63), str(10**6), "1e400", "NaN", "Infinity", "true"),
    *('"5"', "null", "1.5", "-0.0", "1e2", "-Infinity", str(10**400), "false", "[]", "{}", "[1]"),
)


class Field(NamedTuple):
    """A key, its bounds, and where its meaning is found."""

    param: str
    low: float
    high: float
    is_integer: bool
    read: Callable[[Generation], Any]
    default: Any
    is_low_open: bool = False
    is_chat: bool = True
    body: str = '"{param}":{literal}'
    has_null: bool = True


def of_params(name: str) -> Callable[[Generation], Any]:
    return lambda generation: getattr(generation.params, name)


def real(name: str, low: float, high: float, default: float, is_low_open: bool = False) -> Field:
    return Field(name, low, high, False, of_params(name), default, is_low_open)


def integer(name: str, low: int, high: int, default: Any, read: Any = None, **more: Any) -> Field:
    return Field(name, low, high, True, read or of_params(name), default, **more)


def token(param: str, body: str, read: Any, is_chat: bool = True) -> Field:
    high = VOCAB_SIZE - 1
    return Field(param, 0, high, True, read, None, is_chat=is_chat, body=body, has_null=False)


FIELDS = (
    real("temperature", 0, 100, 1.0),
    real("top_p", 0, 1, 1.0, is_low_open=True),
    real("min_p", 0, 1, 0.0),
    real("repetition_penalty", 0, 100, 1.0, is_low_open=True),
    real("presence_penalty", -2, 2, 0.0),
    real("frequency_penalty", -2, 2, 0.0),
    integer("top_k", -1, INT32, 0),
    integer("seed", 0, 2**64 - 1, None),
    integer("max_tokens", 1, INT32, None),
    integer("max_tokens", 1, INT32, 16, is_chat=False),
    integer("max_completion_tokens", 1, INT32, None, of_params("max_tokens")),
    integer("min_tokens", 0, INT32, 0),
    integer("n", 1, 128, 1, lambda generation: generation.n),
    integer("priority", -MAX_PRIORITY, MAX_PRIORITY, 0, lambda generation: generation.priority),
    integer("logprobs", 0, 20, None, is_chat=False),
    integer(
        "top_logprobs",
        0,
        20,
        0,
        of_params("logprobs"),
        body='"logprobs":true,"{param}":{literal}',
    ),
    Field(
        param="logit_bias",
        low=-100,
        high=100,
        is_integer=False,
        read=lambda generation: generation.params.logit_bias[7],
        default=None,
        body='"{param}":{{"7":{literal}}}',
        has_null=False,
    ),
    token(
        "stop_token_ids",
        '"{param}":[{literal}]',
        lambda generation: generation.params.stop_token_ids[0],
    ),
    token(
        "prompt",
        '"{param}":[{literal}]',
        lambda generation: generation.prompts[0].ids[0],
        is_chat=False,
    ),
)


def read(field: Field, literal: str) -> Generation:
    keys = field.body.format(param=field.param, literal=literal)
    if field.is_chat:
        body = '{"messages":[{"role":"user","content":"hi"}],' + keys + "}"
        return read_chat(body.encode(), LIMITS)
    prompt = "" if field.param == "prompt" else '"prompt":"hi",'
    return read_completion(("{" + prompt + keys + "}").encode(), LIMITS)


def expected(field: Field, literal: str) -> tuple[bool, Any]:
    """Whether it is accepted, and the meaning then."""
    if literal == "null" and field.has_null:
        return True, field.default
    value = json.loads(literal)
    if isinstance(value, bool) or not isinstance(value, int if field.is_integer else int | float):
        return False, None
    if not math.isfinite(value if isinstance(value, float) else 0) or not field.low <= value:
        return False, None
    if value > field.high or (field.is_low_open and value == field.low):
        return False, None
    return True, value


def check(field: Field, literal: str) -> None:
    is_accepted, meaning = expected(field, literal)
    if is_accepted:
        assert field.read(read(field, literal)) == meaning
        return
    with pytest.raises(HybridGenError) as refused:
        read(field, literal)
    assert http_status(refused.value) == 400
    assert str(refused.value.fields["param"]).startswith(field.param)
    assert (
        field.param in str(refused.value)
        or "JSON" in str(refused.value)
        or "token id" in str(refused.value)
    )


@pytest.mark.parametrize("literal", LITERALS, ids=[one[:20] for one in LITERALS])
@pytest.mark.parametrize("field", FIELDS, ids=[f"{one.param}-{one.is_chat}" for one in FIELDS])
def test_a_number_is_taken_at_its_value_or_refused_by_the_name_of_its_key(
    field: Field, literal: str
) -> None:
    if field.param == "prompt" and literal in {'"5"', "[1]"}:
        pytest.skip("a list of texts, or of ids, is a prompt too")
    check(field, literal)


@given(
    field=st.sampled_from([one for one in FIELDS if one.param != "prompt"]),
    value=st.one_of(
        st.integers(), st.integers(-3, 200), st.floats(), st.floats(-3, 200), st.booleans()
    ),
)
def test_any_number_is_taken_at_its_value_or_refused_by_the_name_of_its_key(
    field: Field, value: float
) -> None:
    check(field, json.dumps(value))


@given(edge=st.sampled_from(FIELDS), step=st.sampled_from([-1, 0, 1]), is_high=st.booleans())
def test_both_ends_of_each_range_are_exact(edge: Field, step: int, is_high: bool) -> None:
    end = edge.high if is_high else edge.low
    value = end + step if edge.is_integer else math.nextafter(end, math.inf * step) if step else end
    check(edge, json.dumps(value))


@pytest.mark.parametrize("key", ["-1", str(VOCAB_SIZE), "abc", str(10**12), "1.5", "", "١"])
def test_a_biased_id_outside_the_vocabulary_is_refused(key: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "logit_bias": {key: 1}})
    with pytest.raises(HybridGenError) as refused:
        read_chat(body.encode(), LIMITS)
    assert refused.value.fields["param"] == "logit_bias"


def test_ids_are_kept_as_they_stand() -> None:
    generation = read_completion(b'{"prompt":[999,0,5]}', LIMITS)
    assert generation.prompts == [IdsPrompt([999, 0, 5])]
