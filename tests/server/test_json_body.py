from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import HybridGenError, InvalidRequest
from hybridgen.server.json_body import MAX_SHOWN_CHARS, check_keys, decode_body, shown
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.schema import read_chat, read_completion, read_detokenize, read_tokenize

LIMITS = RequestLimits(max_model_len=2048, vocab_size=1000)
MESSAGES = '"messages":[{"role":"user","content":"hi"}]'


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    word: str


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    number: float | None = None
    inner: list[Inner] = []


def refusal(body: bytes | str) -> InvalidRequest:
    raw = body.encode() if isinstance(body, str) else body
    with pytest.raises(InvalidRequest) as refused:
        read_chat(raw, LIMITS)
    assert refused.value.message
    return refused.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}{}",
        b"\xef\xbb\xbf{" + MESSAGES.encode() + b"}",
        ("{" + MESSAGES + "}").encode("utf-16"),
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"\\udc00 \\ud800x"}]}',
        b'{"messages":[{"role":"user","content":"a\x00b"}]}',
        b'{"messages":[{"role":"user","content":"a\nb"}]}',
        b'{"messages":[{"role":"user","content":"\\u0000"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"user":"\\u0000"}',
        b"{'messages':[]}",
        b'{"messages":[{"role":"user","content":"x"},]}',
        b'{"messages":' + b"[" * 10**5,
        b"[" * 10**5,
    ],
)
def test_what_is_not_one_good_object_is_refused(body: bytes) -> None:
    refusal(body)


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ('"n":1,"n":1', "n"),
        ('"n":1,"\\u006e":2', "n"),
        ('"metadata":{"a":"b","a":"b"}', "a"),
        ('"logit_bias":{"5":1,"5":2}', "5"),
        ('"messages":[{"role":"user","role":"user","content":"x"}]', "role"),
    ],
)
def test_a_key_that_stands_twice_is_refused_by_its_name(keys: str, param: str) -> None:
    body = "{" + keys + ("" if "messages" in keys else "," + MESSAGES) + "}"
    error = refusal(body)
    assert error.fields["param"] == param
    assert "more than once" in str(error)


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ('"temprature":1', "temprature"),
        ('"messages":[{"role":"user","content":"x","colour":1}]', "messages[0].colour"),
        ('"messages":[{"role":"user"},5]', "messages[1]"),
        ('"stream_options":{"includes":true}', "stream_options.includes"),
        ('"temperature":NaN', "temperature"),
        ('"top_p" : -Infinity', "top_p"),
        ('"logit_bias":{"5":NaN}', "logit_bias"),
        ('"tools":[NaN]', "tools"),
        ('"messages":5', "messages"),
        ('"stream":"yes"', "stream"),
        ('"metadata":{"a":1}', "metadata"),
        ('"messages":[{"role":"user","content":[{"type":"text"}]}]', "messages[0].content[0].text"),
    ],
)
def test_the_place_of_what_does_not_fit_is_named(keys: str, param: str) -> None:
    body = "{" + keys + ("" if '"messages"' in keys else "," + MESSAGES) + "}"
    assert refusal(body).fields["param"] == param


def test_a_missing_key_is_named() -> None:
    assert refusal('{"model":"m"}').fields["param"] == "messages"


@pytest.mark.parametrize("depth", [64, 65, 200, 10**5])
def test_nesting_ends_at_its_limit(depth: int) -> None:
    body = ('{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}").encode()
    if depth <= 64:
        check_keys(body, 64)
        return
    with pytest.raises(InvalidRequest, match="nested too deeply") as refused:
        check_keys(body, 64)
    assert refused.value.fields["limit"] == 64


def test_many_brackets_side_by_side_are_not_deep() -> None:
    check_keys(json.dumps({"a": [[]] * 1000}).encode(), 3)
    with pytest.raises(InvalidRequest):
        check_keys(json.dumps({"a": [[]] * 1000}).encode(), 2)


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "\\u0000"}]})
    assert read_chat(body.encode(), LIMITS).prompts[0].messages[0].content == "\\u0000"


def test_a_foreign_text_is_quoted_short_and_on_one_line() -> None:
    error = refusal(json.dumps({"x\n\x1b[31m" + "k" * 10**6: 1}))
    assert len(str(error)) < 400
    assert str(error).isprintable()
    assert shown("é語") == "é語"
    assert len(shown("y" * 200)) == MAX_SHOWN_CHARS + 1


def test_decoding_gives_the_struct() -> None:
    outer = decode_body(b'{"number":1,"inner":[{"word":"w"}]}', Outer, 64)
    assert outer == Outer(1.0, [Inner("w")])


def is_typed(read: Callable[[], object]) -> bool:
    try:
        read()
    except HybridGenError as error:
        return error.http_status == 400 and bool(error.message)
    return True


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
known_keys = st.sampled_from(
    ["messages", "prompt", "n", "stop", "tools", "logit_bias", "stream", "model", "tokens", "echo"]
)


@given(body=st.dictionaries(known_keys, json_values, max_size=4), data=st.data())
def test_any_body_is_read_or_refused_with_a_typed_error(body: dict[str, Any], data: Any) -> None:
    reader = data.draw(st.sampled_from([read_chat, read_completion, read_tokenize]))
    text = json.dumps(body | {"messages": [{"role": "user", "content": "x"}]} | body)
    assert is_typed(lambda: reader(text.encode(errors="surrogatepass"), LIMITS))


@given(body=st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0aetrn1-. ').map(str.encode))
def test_any_bytes_are_read_or_refused_with_a_typed_error(body: bytes) -> None:
    for reader in (read_chat, read_completion, read_tokenize, read_detokenize):
        with pytest.raises(HybridGenError):
            reader(body, LIMITS)


def test_bytes_that_are_no_utf8_are_refused_also_in_a_key_that_is_kept_as_it_was_written() -> None:
    schema = b'{"name": "x", "schema": {"title": "\xff"}}'
    wanted = b'{"type": "json_schema", "json_schema": ' + schema + b"}"
    body = b"{" + MESSAGES.encode() + b', "response_format": ' + wanted + b"}"
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        read_chat(body, LIMITS)
