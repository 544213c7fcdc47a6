from __future__ import annotations

import pytest

from hybridgen.request import Grammar
from hybridgen.sampling.matchers import Matchers
from hybridgen.text.special_tokens import SpecialToken
from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.call_grammar import CallGrammar
from hybridgen.text.tool_calls.registry import FORMATS
from hybridgen.text.vocabulary import Vocabulary
from hybridgen.tool import Function

EOS_ID = 256
MARK_IDS = {"[TOOL_CALLS]": 257}
VOCABULARY = Vocabulary(
    [*(bytes([i]) for i in range(256)), b"<eos>", b"[TOOL_CALLS]"],
    [SpecialToken("<eos>", EOS_ID), SpecialToken("[TOOL_CALLS]", 257)],
)
MATCHERS = Matchers(VOCABULARY, [EOS_ID])
#: A schema with a reference, which counts from the root of its own schema.
COUNT = (
    '{"properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"], '
    '"additionalProperties": false, "$defs": {"n": {"type": "integer"}}}'
)
FUNCTIONS = [Function("count", parameters=COUNT, strict=True), Function("stop")]


def allows(grammar: str, text: str) -> bool:
    """Whether the whole ``text`` is allowed, and the end after it."""
    matcher = MATCHERS.start(Grammar("lark", grammar, "tools"))
    mark = "[TOOL_CALLS]"
    ids: list[int] = []
    for index, part in enumerate(text.split(mark)):
        ids += ([MARK_IDS[mark]] if index else []) + [*part.encode()]
    return all(matcher.consume_token(one) for one in ids) and matcher.is_accepting()


def written(format_: CallFormat, *calls: str) -> str:
    """Calls as models of the family write them."""
    objects = [
        f'{{"name": "{one.partition(" ")[0]}", "{format_.arguments_key}": {one.partition(" ")[2]}}}'
        for one in calls
    ]
    match format_.name:
        case "hermes":
            return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
        case "mistral":
            return f"[TOOL_CALLS][{', '.join(objects)}]"
        case _:
            return "; ".join(objects)


@pytest.mark.parametrize("name", FORMATS)
def test_forced_calls_are_calls_with_arguments_of_their_schema(name: str) -> None:
    format_ = FORMATS[name]
    grammar = CallGrammar(format_, MARK_IDS).forced(FUNCTIONS, True)
    assert allows(grammar, written(format_, 'count {"n": 1}'))
    assert allows(grammar, written(format_, "stop {}", 'count {"n": 1}'))
    assert not allows(grammar, written(format_, 'count {"n": "x"}'))
    assert not allows(grammar, written(format_, 'stop {"a": 1}'))
    assert not allows(grammar, written(format_, "other {}"))
    assert not allows(grammar, "Hello")
    assert not allows(grammar, "")


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_is_one(name: str) -> None:
    format_ = FORMATS[name]
    grammar = CallGrammar(format_, MARK_IDS).forced(FUNCTIONS, False)
    assert allows(grammar, written(format_, "stop {}"))
    assert not allows(grammar, written(format_, "stop {}", "stop {}"))


@pytest.mark.parametrize("name", FORMATS)
def test_free_text_may_call_and_keeps_to_strict_schemas_then(name: str) -> None:
    format_ = FORMATS[name]
    grammar = CallGrammar(format_, MARK_IDS).free(FUNCTIONS, True)
    assert allows(grammar, "")
    assert allows(grammar, "a < b, [1] {2}\n")
    assert allows(grammar, written(format_, 'count {"n": 1}', 'stop {"any": [1]}'))
    assert not allows(grammar, written(format_, 'count {"n": "x"}'))
    if format_.is_opener_rare:  # the parser would take these for calls
        for start in ("\n{", "[{"):
            assert not allows(grammar, start + '"name": "count", "parameters": {"n": "x"}}')
    else:
        assert allows(grammar, "Well. " + written(format_, "stop {}"))


@pytest.mark.parametrize("name", FORMATS)
def test_calls_or_an_answer_of_a_schema(name: str) -> None:
    format_ = FORMATS[name]
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    grammar = CallGrammar(format_, MARK_IDS).either(FUNCTIONS, schema, is_parallel=True)
    assert allows(grammar, '{"x": 1}')
    assert allows(grammar, written(format_, 'count {"n": 1}'))
    assert not allows(grammar, '{"x": "y"}')
    assert not allows(grammar, "Hello")
