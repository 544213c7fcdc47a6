from __future__ import annotations

from typing import Any

import pytest

from hybridgen.errors import ContextLengthExceeded, HybridGenError, InvalidRequest
from hybridgen.request import ChatPrompt, Grammar, SamplingParams
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.tool_support import ToolSupport
from hybridgen.server.tool_use import ToolUse, read_tool_use
from hybridgen.text.special_tokens import SpecialToken
from hybridgen.text.tool_calls.hermes import HERMES
from hybridgen.text.tool_calls.mistral import MISTRAL
from hybridgen.text.vocabulary import Vocabulary
from hybridgen.tool import Tool, as_tools
from tests.server.tools import SUPPORT, TOOLS, ask, tool

TIME = {"type": "function", "function": {"name": "get_time"}}


def offered(**keys: Any) -> list[Tool]:
    prompt = ask(**keys).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    return prompt.tools


def grammar_of(**keys: Any) -> Grammar:
    grammar = ask(**keys).params.grammar
    assert grammar is not None
    return grammar


def use(**keys: Any) -> ToolUse:
    return ToolUse(tools=as_tools(TOOLS), support=SUPPORT, **keys)


def param_of(**keys: Any) -> Any:
    with pytest.raises(InvalidRequest) as refused:
        ask(**keys)
    assert refused.value.http_status == 400
    return refused.value.fields["param"]


def test_tools_are_shown_to_the_model_and_its_answer_is_read() -> None:
    for keys in ({}, {"tool_choice": "auto"}, {"tool_choice": None, "parallel_tool_calls": True}):
        generation = ask(**keys)
        assert offered(**keys) == as_tools(TOOLS)
        assert generation.tools is not None
        assert generation.tools.names == {"get_weather", "get_time"}
        assert generation.tools.is_parallel
        assert generation.params.keep_tool_marks
        assert generation.params.grammar is None


@pytest.mark.parametrize("keys", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
def test_without_tools_or_with_none_to_choose_an_answer_is_text(keys: dict[str, Any]) -> None:
    generation = ask(**keys)
    assert generation.tools is None
    assert offered(**keys) == []
    assert not generation.params.keep_tool_marks


def test_one_call_at_a_time_can_be_asked_for() -> None:
    tools = ask(parallel_tool_calls=False).tools
    assert tools is not None
    assert not tools.is_parallel


def test_a_call_that_must_come_is_held_to_the_grammar_of_calls() -> None:
    required = grammar_of(tool_choice="required")
    assert required.param == "tool_choice"
    assert "get_weather" in required.text
    assert "get_time" in required.text
    named = grammar_of(tool_choice=TIME)
    assert "get_weather" not in named.text
    assert "get_time" in named.text
    assert offered(tool_choice=TIME) == as_tools(TOOLS)


def test_strict_functions_are_held_to_their_schema() -> None:
    strict = grammar_of(tools=[tool("f", strict=True)])
    assert strict.param == "tools"
    assert '"city"' in strict.text
    assert ask(tools=[tool("f", strict=False)]).params.grammar is None


def test_an_answer_of_a_schema_may_be_calls_instead() -> None:
    for answer in (
        Grammar("json_object", "", "response_format"),
        Grammar.json_schema({}),
        Grammar.json_schema(True),
    ):
        params = SamplingParams(grammar=answer)
        grammar = use().constrain(params).grammar
        assert grammar is not None
        assert grammar.param == answer.param
        assert "answer" in grammar.text


def test_a_schema_that_is_none_is_named() -> None:
    params = SamplingParams(grammar=Grammar("json_schema", "{", "g"))
    with pytest.raises(InvalidRequest) as refused:
        use().constrain(params)
    assert refused.value.fields["param"] == "g"


@pytest.mark.parametrize(
    ("choice", "answer"),
    [("required", Grammar("json_object", "", "g")), ("auto", Grammar("regex", "a", "g"))],
)
def test_formats_that_leave_no_room_for_a_call_are_refused(choice: Any, answer: Grammar) -> None:
    params = SamplingParams(grammar=answer)
    with pytest.raises(InvalidRequest) as refused:
        use(choice=choice).constrain(params)
    assert refused.value.fields["param"] == "g"


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"tools": [tool("f"), tool("a b")]}, "tools[1].function.name"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
        ({"tools": [tool("f\n")]}, "tools[0].function.name"),
        ({"tools": [tool("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool("f", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", description=5)]}, "tools[0].function.description"),
        ({"tools": [tool("f", more=1)]}, "tools[0].function.more"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": None, "tool_choice": TIME}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_what_is_wrong_is_named(keys: dict[str, Any], param: str) -> None:
    assert param_of(**keys) == param


def test_128_tools_can_be_offered() -> None:
    assert len(offered(tools=[tool(f"f{i}", parameters={}) for i in range(128)])) == 128


def test_a_model_whose_calls_cannot_be_read_refuses_tools_by_name() -> None:
    assert param_of(limits=RequestLimits()) == "tools"
    assert ask(limits=RequestLimits(), tool_choice="none").tools is None


def test_tools_count_as_part_of_the_prompt() -> None:
    with pytest.raises(HybridGenError) as refused:
        ask(tools=[tool("f", description="x" * 8000)])
    assert isinstance(refused.value, ContextLengthExceeded)


def test_no_tools_need_no_support() -> None:
    assert read_tool_use(None, "auto", None, None) is None


def test_marks_that_are_special_tokens_are_found() -> None:
    specials = [SpecialToken("[TOOL_CALLS]", 1), SpecialToken("<s>", 0)]
    vocabulary = Vocabulary([b"<s>", b"[TOOL_CALLS]", b"[ARGS]"], specials)
    support = ToolSupport.of(MISTRAL, vocabulary)
    assert support == ToolSupport(MISTRAL, {"[TOOL_CALLS]": 1})
    assert ToolSupport.of(HERMES, vocabulary) == ToolSupport(HERMES)
    assert ToolSupport.of(None, vocabulary) is None


LARGE = tool("f", strict=True, parameters={"type": "object", "title": "a" * 65_536})


@pytest.mark.parametrize(
    "keys",
    [
        {"tools": [LARGE]},
        {"tools": [LARGE], "tool_choice": "required"},
        {"tools": [LARGE], "response_format": {"type": "json_object"}},
    ],
)
def test_tools_that_make_too_large_a_grammar_are_named(keys: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(limits=RequestLimits(tools=SUPPORT), **keys)
    assert refused.value.fields["param"] == "tools"
    assert refused.value.fields["limit"] == "65536 bytes in all"
    assert refused.value.fields["remedy"]


@pytest.mark.parametrize(
    ("keys", "asked"),
    [({"tool_choice": "required"}, "tool_choice"), ({"tools": [tool("f", strict=True)]}, "tools")],
)
def test_calls_that_are_held_to_a_grammar_end_with_it(keys: dict[str, Any], asked: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(ignore_eos=True, **keys)
    assert refused.value.fields["param"] == "ignore_eos"
    assert refused.value.fields["remedy"] == f"Leave out ignore_eos or {asked}"
