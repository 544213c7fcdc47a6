from __future__ import annotations

from typing import Any

import pytest

from hybridgen.client.order import checked_params, checked_prompt, checked_traceparent
from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage, ChatPrompt, IdsPrompt, SamplingParams, TextPrompt


@pytest.mark.parametrize(
    "bad",
    [
        "half a pair \ud800",
        [2**70],
        TextPrompt(5),  # type: ignore[arg-type]
        IdsPrompt(["x"]),  # type: ignore[list-item]
        ChatPrompt([ChatMessage("user", "\udfff")]),
        ChatPrompt(["no message"]),  # type: ignore[list-item]
        IdsPrompt([object()]),  # type: ignore[list-item]
    ],
)
def test_a_prompt_that_cannot_travel_is_refused_before_it_is_sent(bad: Any) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        checked_prompt(bad)


def test_a_good_prompt_is_left_as_it_is() -> None:
    assert checked_prompt("語\x00😀") == TextPrompt("語\x00😀")
    assert checked_prompt(range(3)) == IdsPrompt([0, 1, 2])


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": "hot"},
        {"top_k": 1.5},
        {"stop": "one text"},
        {"stop": (b"bytes",)},
        {"logit_bias": {"a": 1.0}},
        {"ignore_eos": 1},
        {"seed": object()},
    ],
)
def test_a_parameter_of_the_wrong_type_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="wrong type"):
        checked_params(SamplingParams(**values))


def test_parameters_are_checked_for_range_and_lists_become_tuples() -> None:
    with pytest.raises(InvalidRequest, match="top_p"):
        checked_params(SamplingParams(top_p=2.0))
    loose = SamplingParams(stop=["a"], stop_token_ids=[1])  # type: ignore[arg-type]
    assert checked_params(loose) == SamplingParams(stop=("a",), stop_token_ids=(1,))
    assert checked_params(None) == SamplingParams()


def test_a_traceparent_is_well_formed_or_none_at_all() -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert checked_traceparent(given) == given
    assert checked_traceparent("") == ""
    with pytest.raises(InvalidRequest, match="traceparent") as caught:
        checked_traceparent("half \ud800 of one")
    assert caught.value.fields["param"] == "traceparent"
