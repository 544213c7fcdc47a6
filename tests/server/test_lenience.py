"""Unknown keys: left out and named, or refused; nothing else becomes acceptable."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.server.bodies import ChatBody, CompletionBody
from hybridgen.server.lenience import (
    MAX_HEADER_BYTES,
    MAX_NAMED_KEYS,
    ignored_header,
    without_unknown_keys,
)
from tests.support.asgi_driver import ask
from tests.support.front_door import CHAT, make_app, play
from tests.support.scripted_backend import ScriptedBackend

NAME = "x-hybridgen-ignored"


def test_unknown_keys_are_left_out_wherever_they_stand() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "Hi", "tone": "kind"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi", "cache_control": {"a": 1}}],
            },
        ],
        "stream_options": {"include_usage": True, "every": 5},
        "stream": True,
        "logit_bias": {"7": 1.5},
        "think": {"hard": True},
    }
    left, ignored = without_unknown_keys(msgspec.json.encode(body), ChatBody)
    assert set(ignored) == {
        "think",
        "messages[0].tone",
        "messages[1].content[0].cache_control",
        "stream_options.every",
    }
    chat = msgspec.json.decode(left, type=ChatBody)
    assert chat.logit_bias == {7: 1.5}
    assert chat.stream_options is not None
    assert chat.stream_options.include_usage


def test_what_is_free_of_them_is_the_same_to_the_byte() -> None:
    body = b'{ "prompt" : "Once", "temperature": 0.10 }'
    assert without_unknown_keys(body, CompletionBody) == (body, [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"prompt": 1.5, "foo": 1}',
        b'{"foo": 1, "prompt": NaN',
        b'{"foo": ' + b"[" * 100_000,
    ],
)
def test_what_is_wrong_in_another_way_is_left_to_the_strict_reading(body: bytes) -> None:
    left, _ = without_unknown_keys(body, CompletionBody)
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
        msgspec.json.decode(left, type=CompletionBody)


def test_a_key_that_stands_twice_stays_an_error() -> None:
    with pytest.raises(InvalidRequest, match="more than once"):
        without_unknown_keys(b'{"foo": 1, "prompt": "a", "prompt": "b"}', CompletionBody)


@pytest.mark.parametrize(
    "places", [["k" * 10_000] * 5, ["é\r\nx: y"], [f"k{n}" for n in range(99)]]
)
def test_the_header_is_short_and_safe_whatever_the_keys_are(places: list[str]) -> None:
    name, value = ignored_header(places)
    assert name == NAME.encode()
    assert len(value) <= MAX_HEADER_BYTES + 32
    assert value.isascii()
    assert value.decode().isprintable()
    if len(places) > MAX_NAMED_KEYS:
        assert value.endswith(b", and 67 more")


def test_a_lenient_server_answers_and_names_what_it_ignored() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), is_lenient=True)
        for is_stream in (False, True):
            body = {**CHAT, "foo": 1, "stream": is_stream}
            visit = await ask(app, "POST", "/v1/chat/completions", body)
            assert visit.status == 200
            assert visit.headers[NAME] == "foo"
        assert NAME not in (await ask(app, "POST", "/v1/chat/completions", CHAT)).headers
        visit = await ask(app, "POST", "/v1/chat/completions", {**CHAT, "foo": 1, "top_p": 9})
        assert visit.status == 400
        assert visit.json["error"]["param"] == "top_p"

    play(scene())


def test_a_strict_server_refuses_them_by_name() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        visit = await ask(app, "POST", "/v1/chat/completions", {**CHAT, "foo": 1})
        assert visit.status == 400
        assert visit.json["error"]["param"] == "foo"

    play(scene())


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": 1}}},
    ],
)
def test_a_format_is_told_by_its_type_beside_a_foreign_key(wanted: dict[str, Any]) -> None:
    message = {"role": "user", "content": "Hi"}
    body = {"messages": [message], "response_format": {**wanted, "bar": 1}, "foo": 1}
    left, ignored = without_unknown_keys(msgspec.json.encode(body), ChatBody)
    assert ignored == ["foo", "response_format.bar"]
    assert msgspec.json.decode(left) == {"messages": [message], "response_format": wanted}
    msgspec.json.decode(left, type=ChatBody)


@pytest.mark.parametrize("wanted", [{"type": "xml"}, {}, {"type": ["text"]}])
def test_a_format_of_no_known_type_is_left_to_the_strict_reading(wanted: dict[str, Any]) -> None:
    body = {"messages": [], "foo": 1, "response_format": {**wanted, "bar": 1}}
    left, ignored = without_unknown_keys(msgspec.json.encode(body), ChatBody)
    assert ignored == ["foo"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(left, type=ChatBody)
