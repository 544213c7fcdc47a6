from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.call_reader import MAX_HELD_CHARS
from hybridgen.text.tool_calls.hermes import HERMES
from hybridgen.text.tool_calls.llama3_json import LLAMA3_JSON
from hybridgen.text.tool_calls.mistral import MISTRAL
from hybridgen.text.tool_calls.parser import CallParser
from hybridgen.text.tool_calls.pieces import Arguments, CallBegun, Content, Piece
from tests.text.tool_calls.cut_text import call, cuts, joined, parse

FORMATS = st.sampled_from([HERMES, LLAMA3_JSON, MISTRAL])
#: What calls are made of, whole and in parts, and what they are not made of.
FRAGMENTS = (
    "<tool_call>", "</tool_call>", "<tool_", "call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]",
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "parameters": ', '{"name": "other"',
    '{"arguments": {"x": "<tool_call>"}, "name": "f"}', "f{", "{", "}", "[", "]", '"', "\\", ":",
    ",", ";", " ", "\n", "text", "1", "null", '"arguments": "{}"', "é", "\ud83d", "'",
)  # fmt: skip
SCRAPS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
KEYS = st.text(max_size=5)
TEXTS = st.text(max_size=8) | st.sampled_from(FRAGMENTS[:6])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["f", "get_weather"]), st.dictionaries(st.text(max_size=5), JSON)),
    min_size=1,
    max_size=3,
)


@given(FORMATS, SCRAPS, st.data())
def test_however_text_is_cut_the_same_comes_out(
    format_: CallFormat, text: str, data: st.DataObject
) -> None:
    assert parse(format_, data.draw(cuts(text))) == parse(format_, [text])


@given(FORMATS, SCRAPS)
def test_nothing_is_told_that_was_not_written_and_text_without_calls_is_content(
    format_: CallFormat, text: str
) -> None:
    pieces = parse(format_, [*text])
    told = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    rest = iter(text)
    assert all(char in rest for char in told)  # in the order in which it was written
    if not any(isinstance(piece, CallBegun) for piece in pieces):
        assert told == text


@given(FORMATS, SCRAPS, SCRAPS)
def test_what_was_told_stays_true_whatever_comes(
    format_: CallFormat, text: str, further: str
) -> None:
    parser = CallParser(format_, {"f"})
    told = parser.push(text)
    assert joined(told + parser.push(further) + parser.finish()) == parse_offered(
        format_, text + further
    )


def parse_offered(format_: CallFormat, text: str) -> list[Piece]:
    parser = CallParser(format_, {"f"})
    return joined(parser.push(text) + parser.finish())


@given(CALLS, st.booleans(), st.sampled_from([None, 2]), st.data())
def test_calls_of_every_form_are_read(
    calls: list[tuple[str, dict[str, Any]]], is_ascii: bool, indent: int | None, data: st.DataObject
) -> None:
    def dumped(value: Any) -> str:
        return json.dumps(value, ensure_ascii=is_ascii, indent=indent)

    expected = [
        piece for name, arguments in calls for piece in call(name, dumped(arguments))
    ]  # fmt: skip
    objects = [
        f'{{"name": "{name}", "{{}}": {dumped(arguments)}}}'.replace("{}", "arguments", 1)
        for name, arguments in calls
    ]
    parameters = [one.replace('"arguments"', '"parameters"', 1) for one in objects]
    plain = "".join(f"[TOOL_CALLS]{name}[ARGS]{dumped(arguments)}" for name, arguments in calls)
    for format_, text in (
        (HERMES, "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)),
        (HERMES, f"<tool_call>[{','.join(objects)}]</tool_call>"),
        (HERMES, "\n".join(objects)),
        (LLAMA3_JSON, "; ".join(parameters)),
        (LLAMA3_JSON, "".join(f"<|python_tag|>{one}" for one in parameters)),
        (MISTRAL, f"[TOOL_CALLS] [{', '.join(objects)}]"),
        (MISTRAL, plain),
    ):
        assert parse(format_, data.draw(cuts(text))) == expected, text


@given(CALLS, st.data())
def test_a_call_that_is_cut_off_keeps_what_was_written(
    calls: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    name, arguments = calls[0]
    head, body = f'<tool_call>{{"name": "{name}", "arguments": ', json.dumps(arguments)
    end = data.draw(st.integers(0, len(body)))
    pieces = parse(HERMES, data.draw(cuts(head + body[:end])))
    assert pieces == (call(name, body[:end]) if end else [Content(head)])


@pytest.mark.parametrize(
    ("format_", "text", "expected"),
    [
        (HERMES, "Let me see.\n<tool_call>{\"name\": \"f\"}</tool_call>\n",
         [Content("Let me see.\n"), *call("f", "{}")]),
        (HERMES, ' <tool_call>{"name": "f", "arguments": null}</tool_call> so',
         [*call("f", "{}"), Content(" so")]),
        (HERMES, '<tool_call>{"type": "function", "id": "x", "name": "f", "arguments": {}, "k": 1}',
         call("f", "{}")),
        (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
         call("f", '{"a": 1}')),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
         call("f", '{"a": 1}')),
        (HERMES, '<tool_call>{"name": "\\u0066", "arguments": {"a": "\\u00e9</tool_call>"}}',
         call("f", '{"a": "\\u00e9</tool_call>"}')),
        (MISTRAL, '[TOOL_CALLS]f[CALL_ID]ab1[ARGS]{"a": 1}[TOOL_CALLS]g{}',
         [*call("f", '{"a": 1}'), *call("g", "{}")]),
        (LLAMA3_JSON, '{"name": "f", "parameters": {}}; and so on',
         [*call("f", "{}"), Content("; and so on")]),
    ],
)  # fmt: skip
def test_forms_that_models_use(format_: CallFormat, text: str, expected: list[Piece]) -> None:
    assert parse(format_, [*text]) == expected


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ('{"a": 1</tool_call> x', '{"a": 1', " x"),
        ("{'a': 1}}</tool_call>", "{'a': 1}}", ""),
        ('{"a": 1}</tool_call>', '{"a": 1}', ""),
        ('{"a": 1}}}\n</tool_call>', '{"a": 1}', "}\n"),
        ('{"a": [1}}</tool_call> x', '{"a": [1}}', " x"),
        ('{"a": 1 <tool_call>', '{"a": 1 ', "<tool_call>"),
        ("5}</tool_call>", "5", ""),
        ('"\\ud800"}</tool_call>', '"\\ud800"', ""),
    ],
)
def test_arguments_that_are_no_json_are_told_as_they_are(
    text: str, arguments: str, rest: str
) -> None:
    expected = [*call("f", arguments), *([Content(rest)] if rest else [])]
    assert parse(HERMES, [*'<tool_call>{"name": "f", "arguments": ' + text]) == expected


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        (HERMES, "the tag <tool_call> opens"),
        (HERMES, '<tool_call>{"name": "no name", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"tool": "f"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f"'),
        (HERMES, "<tool_call>\n</tool_call>"),
        (HERMES, "<tool_cal"),
        (HERMES, '{"name": "unknown", "arguments": {}}'),
        (HERMES, 'First {"name": "f", "arguments": {}}'),
        (LLAMA3_JSON, "<|python_tag|>print(1)"),
        (LLAMA3_JSON, '{"name": "Bob", "age": 3}'),
        (LLAMA3_JSON, "[1, 2]"),
        (MISTRAL, "[TOOL_CALLS]f and more"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]"),
        (HERMES, " \n "),
        (HERMES, ""),
    ],
)
def test_what_only_looks_like_a_call_is_content(format_: CallFormat, text: str) -> None:
    assert parse(format_, [*text]) == ([Content(text)] if text else [])


def test_a_call_behind_what_is_none_is_found() -> None:
    text = 'A <tool_call> is <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse(HERMES, [text]) == [Content("A <tool_call> is "), *call("f", "{}")]


def test_arguments_are_told_while_they_are_made() -> None:
    parser = CallParser(HERMES, {"f"})
    assert parser.push('<tool_call>{"name": "f", "arguments": {"a') == [
        CallBegun("f"),
        Arguments('{"a'),
    ]
    assert parser.push('": "') == [Arguments('": "')]
    assert parser.push("x") == [Arguments("x")]


def test_text_is_told_at_once_unless_a_mark_may_begin() -> None:
    parser = CallParser(HERMES, set())
    assert parser.push("a < b") == [Content("a < b")]
    assert parser.push("<too") == []
    assert parser.push("l") == []
    assert parser.push("s") == [Content("<tools")]


def test_what_is_held_back_is_bounded() -> None:
    parser = CallParser(HERMES, set())
    head = '<tool_call>{"arguments": {"a": "'
    told = parser.push(head + "x" * MAX_HELD_CHARS)
    assert joined(told) == [Content(head + "x" * MAX_HELD_CHARS)]
