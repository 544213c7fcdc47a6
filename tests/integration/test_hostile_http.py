"""Bad input over HTTP to a real tree: 4xx with all four fields, at once, and nothing breaks."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("h2")

from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.http2_client import Http2Connection
from tests.support.http_caller import Answer, post
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONTEXT = 256
#: Of an answer that the machine was not too busy for: the best of so many tries.
MAX_ANSWER_S = 0.05
NUM_TRIES = 30
MESSAGES = '"messages":[{"role":"user","content":"hi"}]'
NUMBERS = ("0", "-1", str(2**31), str(2**63), "1000000", "1e400", "NaN", "Infinity", "true", '"5"')
INTEGERS = ("max_tokens", "max_completion_tokens", "min_tokens", "n", "priority", "seed", "top_k")
REALS = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"),
    "repetition_penalty",
)
MEGABYTE = 1 << 20


class Door:
    """A tree and the port of its gateway."""

    def __init__(self, tree: RunningTree, port: int) -> None:
        self.tree = tree
        self.port = port

    def assert_unharmed(self) -> None:
        answer = post(self.port, CHAT, chat(content="ok"))
        assert answer.status == 200, answer.body
        restarted = {p.name: p.last_exit for p in self.tree.client.ps().processes if p.restarts}
        assert restarted == {}


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    port = free_port()
    with running_tree(model="mock", mock_max_model_len=CONTEXT, num_gateways=1, port=port) as tree:
        running = Door(tree, port)
        yield running
        running.assert_unharmed()


def chat(**options: Any) -> dict[str, Any]:
    content = options.pop("content", "hi")
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **options}


def completion(prompt: Any, **options: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 4, **options}


def assert_refused(answer: Answer, param: str | None = None, status: int = 400) -> None:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"]
    assert "Traceback" not in error["message"]
    assert len(answer.body) < 2000
    if param is not None:
        assert str(error["param"]).startswith(param), error


def refusal(door: Door, path: str, body: object, param: str | None = None) -> None:
    """Refused each time, and at once at least once."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    times = []
    for _ in range(NUM_TRIES):
        started_s = time.perf_counter()
        answer = post(door.port, path, content)
        times.append(time.perf_counter() - started_s)
        assert_refused(answer, param)
        if times[-1] <= MAX_ANSWER_S:
            return
    assert min(times) <= MAX_ANSWER_S, times


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [*INTEGERS, *REALS])
def test_a_number_is_served_or_refused_by_the_name_of_its_key(door: Door, key: str) -> None:
    for literal in (*NUMBERS, "null", "1.5"):
        body = "{" + MESSAGES + f',"{key}":{literal}' + "}"
        if key not in {"max_tokens", "max_completion_tokens"}:
            body = body[:-1] + ',"max_tokens":4}'
        answer = post(door.port, CHAT, body.encode())
        if answer.status == 200:
            assert literal in {"0", "-1", str(2**31), str(2**63), "1000000", "null", "1.5"}
            continue
        # What fits no context is refused by the key that leaves no room.
        assert_refused(answer)
        error = answer.json()["error"]
        assert error["param"] in {key, "max_tokens"}, (literal, error)


@pytest.mark.parametrize("key", ["-1", "512", "abc", str(10**12), "1.5", ""])
def test_a_bias_for_no_token_is_refused(door: Door, key: str) -> None:
    refusal(door, CHAT, chat(logit_bias={key: 1}), "logit_bias")


@pytest.mark.parametrize("bias", ["NaN", "1000", "-1000", "1e400", '"1"', "[]"])
def test_a_bias_that_is_no_small_number_is_refused(door: Door, bias: str) -> None:
    refusal(door, CHAT, ("{" + MESSAGES + ',"logit_bias":{"1":' + bias + "}}").encode())


# --- prompts ------------------------------------------------------------------------------------


def test_a_prompt_that_fits_is_served_and_one_token_more_is_not(door: Door) -> None:
    ids = [65] * (CONTEXT - 4)
    assert post(door.port, COMPLETIONS, completion(ids)).status == 200
    refusal(door, COMPLETIONS, completion([*ids, 65]))
    refusal(door, COMPLETIONS, completion([65] * (10 * CONTEXT)), "prompt")
    text = "a" * (CONTEXT - 5)  # and the mark of the beginning
    assert post(door.port, COMPLETIONS, completion(text[:-1])).status == 200
    refusal(door, COMPLETIONS, completion("a" * (CONTEXT + 1)))
    refusal(door, COMPLETIONS, completion("a" * (10 * CONTEXT)), "prompt")


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], None, 5, [-1], [512], [[1], "a"], {"a": 1}])
def test_a_prompt_that_is_none_is_refused(door: Door, prompt: Any) -> None:
    refusal(door, COMPLETIONS, completion(prompt), "prompt")


@pytest.mark.parametrize("character", ["a", " ", "\u0301", "🏳️‍🌈", "\u202e", "\ufeff"], ids=ascii)
def test_ten_megabytes_of_one_character_are_refused_at_once(door: Door, character: str) -> None:
    text = character * (10 * MEGABYTE // len(character.encode()))
    refusal(door, COMPLETIONS, completion(text), "prompt")
    refusal(door, CHAT, chat(content=text), "messages")
    refusal(door, "/tokenize", {"prompt": text}, "prompt")


@pytest.mark.parametrize("character", ["a", "\u0301", "🏳️‍🌈", "\u202e", "\ufeff"])
def test_a_text_of_one_character_that_fits_is_served(door: Door, character: str) -> None:
    text = character * (100 // len(character.encode()))
    assert post(door.port, COMPLETIONS, completion(text)).status == 200


def test_what_looks_like_a_special_token_is_text(door: Door) -> None:
    for text in ("<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<|im_start|>system"):
        spelled = post(door.port, "/tokenize", {"prompt": text}).json()["tokens"]
        assert len(spelled) >= len(text)
        assert post(door.port, CHAT, chat(content=text)).status == 200


def test_a_prompt_of_special_tokens_only_is_served(door: Door) -> None:
    answer = post(door.port, COMPLETIONS, completion([0, 1, 2]))
    assert answer.status == 200


# --- stops, grammars ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stop", [["a"] * 5, [""], "", "x" * MEGABYTE, ["é" * 129], [1], {"a": 1}, ["a", None]]
)
def test_a_stop_that_is_none_is_refused(door: Door, stop: Any) -> None:
    refusal(door, CHAT, chat(stop=stop), "stop")


@pytest.mark.parametrize("stop", ["(a+)+$", ".*", "\\", "é", "🏳️", ["ab", "abc"], ["a", "a"], "\n"])
def test_any_other_stop_is_a_plain_text(door: Door, stop: Any) -> None:
    assert post(door.port, CHAT, chat(stop=stop)).status == 200


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|b)*a(a|b){20}", "|".join(map(str, range(20_000))), "(?=a)b", "(a)\\1", "("],
    ids=["nested", "exponential", "alternatives", "look-ahead", "back-reference", "open"],
)
def test_a_stop_regex_is_answered_at_once(door: Door, pattern: str) -> None:
    started_s = time.perf_counter()
    answer = post(door.port, CHAT, chat(stop_regex=pattern))
    assert time.perf_counter() - started_s < 5.0
    if answer.status != 200:
        assert_refused(answer, "stop_regex")


# --- bodies -------------------------------------------------------------------------------------

BAD_BODIES = {
    "empty": b"",
    "cut": b'{"messages":[',
    "not JSON": b"messages=hi",
    "single quotes": b"{'messages':[]}",
    "a list": b"[]",
    "null": b"null",
    "two": b"{}{}",
    "byte order mark": b"\xef\xbb\xbf{" + MESSAGES.encode() + b"}",
    "UTF-16": ("{" + MESSAGES + "}").encode("utf-16"),
    "not UTF-8": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "lone surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    "raw surrogate": b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "NUL": b'{"messages":[{"role":"user","content":"\\u0000"}]}',
    "raw NUL": b'{"messages":[{"role":"user","content":"a\x00b"}]}',
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "deep metadata": b"{" + MESSAGES.encode() + b',"metadata":' + b"[" * 100_000,
    "deep unserved": b"{" + MESSAGES.encode() + b',"audio":' + b"[" * 1000 + b"]" * 1000 + b"}",
    "twice": b"{" + MESSAGES.encode() + b"," + MESSAGES.encode() + b"}",
    "twice inside": b'{"messages":[{"role":"user","role":"user","content":"x"}]}',
    "long number": b"{" + MESSAGES.encode() + b',"seed":' + b"9" * 100_000 + b"}",
    "long fraction": b"{" + MESSAGES.encode() + b',"temperature":0.' + b"9" * 100_000 + b"e9999}",
    "long key": b"{" + MESSAGES.encode() + b',"' + b"k" * MEGABYTE + b'":1}',
    "many keys": msgspec.json.encode({f"k{n}": n for n in range(100_000)}),
    "unknown": b"{" + MESSAGES.encode() + b',"surprise":1}',
    "unknown inside": b'{"messages":[{"role":"user","content":"x","surprise":1}]}',
    "no messages": b'{"messages":[]}',
    "too many messages": msgspec.json.encode(
        {"messages": [{"role": "user", "content": ""}] * 5000}
    ),
    "wrong role": b'{"messages":[{"role":"wizard","content":"x"}]}',
    "picture": b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":'
    b'"http://127.0.0.1:9/x.png"}}]}]}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_body_that_is_no_good_object_is_refused(door: Door, name: str) -> None:
    refusal(door, CHAT, BAD_BODIES[name])


def test_a_parameter_that_is_not_known_is_named(door: Door) -> None:
    refusal(door, CHAT, chat(surprise=1), "surprise")
    refusal(door, COMPLETIONS, completion("a", messages=[]), "messages")
    refusal(door, "/tokenize", {"prompt": "a", "n": 1}, "n")
    refusal(door, "/detokenize", {"tokens": [1], "n": 1}, "n")


# --- web pages of others -------------------------------------------------------------------------


def test_a_page_whose_name_leads_here_gets_no_answer(door: Door) -> None:
    evil = f"evil.example:{door.port}"
    answer = raw(door, head("/v1/models", "GET", host=evil, connection="close"))
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"--allowed-hosts" in answer
    with Http2Connection(door.port, authority=evil) as page:
        assert page.get("/v1/models") == 403


# --- below the body -----------------------------------------------------------------------------


def head(path: str = CHAT, method: str = "POST", **headers: str) -> bytes:
    lines = {"host": "localhost", "content_type": "application/json", **headers}
    text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode()


def raw(door: Door, request: bytes, timeout_s: float = 15.0) -> bytes:
    """All that comes back until the server ends the connection or has answered."""
    with socket.create_connection(("127.0.0.1", door.port), timeout=timeout_s) as connection:
        connection.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received or not received.endswith((b"}", b"\r\n\r\n")):
            piece = connection.recv(1 << 16)
            if not piece:
                break
            received += piece
        return received


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_packed_bomb_is_refused_unopened(door: Door) -> None:
    bomb = gzip.compress(bytes(100 * MEGABYTE), 9)
    request = head(content_encoding="gzip", content_length=str(len(bomb))) + bomb
    answer = raw(door, request)
    assert status_of(answer) == 415
    assert b"content-encoding" in answer


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", ""])
def test_another_type_is_refused(door: Door, kind: str) -> None:
    assert status_of(raw(door, head(content_type=kind, content_length="2") + b"{}")) == 415


@pytest.mark.parametrize(
    "lengths",
    ["-1", "abc", "1, 2", str(2**63), "9" * 30, "0x10", ""],
)
def test_a_length_that_is_none_is_refused(door: Door, lengths: str) -> None:
    answer = raw(door, head(content_length=lengths) + b"{}")
    assert status_of(answer) in {400, 413}


def test_a_longer_length_than_any_body_may_have_is_refused_at_once(door: Door) -> None:
    assert status_of(raw(door, head(content_length=str(64 * MEGABYTE)))) == 413


def test_two_meanings_of_a_length_are_refused(door: Door) -> None:
    smuggled = (
        head(content_length="5", transfer_encoding="chunked") + b"0\r\n\r\nGET /x HTTP/1.1\r\n"
    )
    assert status_of(raw(door, smuggled)) == 400
    twice = head(content_length="2").replace(b"\r\n\r\n", b"\r\ncontent-length: 3\r\n\r\n")
    assert status_of(raw(door, twice + b"{}")) == 400


def test_chunks_that_never_end_are_refused_at_the_limit_of_the_body(door: Door) -> None:
    piece = b"%x\r\n" % MEGABYTE + b" " * MEGABYTE + b"\r\n"
    answer = b""
    with socket.create_connection(("127.0.0.1", door.port), timeout=15) as connection:
        connection.sendall(head(transfer_encoding="chunked"))
        try:
            for _ in range(64):
                connection.sendall(piece)
        except OSError:
            pass  # it has heard enough
        try:
            answer = connection.recv(1 << 16)
        except OSError:
            return  # reset before the answer could be read
    assert status_of(answer) == 413


def test_headers_are_bounded(door: Door) -> None:
    answer = raw(door, head(x_long="a" * 70_000))
    assert status_of(answer) in {400, 431}
    answer = raw(door, head(**{f"x{n}": "a" for n in range(2000)}))
    assert status_of(answer) in {400, 431}


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 100,
    ],
    ids=["short", "TLS", "version", "zeros"],
)
def test_what_is_no_request_ends_the_connection(door: Door, request_line: bytes) -> None:
    answer = raw(door, request_line)
    assert not answer or status_of(answer) in {400, 505}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "BREW"])
def test_another_method_is_refused(door: Door, method: str) -> None:
    answer = raw(door, head(method=method, connection="close"))
    assert status_of(answer) == 405
    assert b"allow: POST" in answer


@pytest.mark.parametrize(
    "path", ["/v1/../etc/passwd", "/v1/chat/completions/", "/%2e%2e/x", "/v1/models/%0a%0d", "//"]
)
def test_another_path_is_not_found(door: Door, path: str) -> None:
    assert status_of(raw(door, head(path, "GET", connection="close"))) == 404


def test_a_head_that_comes_drop_by_drop_is_cut_in_time(door: Door) -> None:
    with socket.create_connection(("127.0.0.1", door.port), timeout=15) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
        assert ended(connection, drop=b"a")


def test_a_connection_that_never_says_anything_is_cut_and_one_that_asked_is_not(door: Door) -> None:
    with (
        Http2Connection(door.port) as asked,
        socket.create_connection(("127.0.0.1", door.port), timeout=30) as silent,
    ):
        assert asked.get("/version") == 200
        assert ended(silent, limit_s=20.0)
        assert asked.get("/version") == 200


def ended(connection: socket.socket, drop: bytes = b"", limit_s: float = 13.0) -> bool:
    connection.settimeout(0.25)
    ends_s = time.monotonic() + limit_s
    while time.monotonic() < ends_s:
        try:
            if drop:
                connection.send(drop)
            if not connection.recv(1 << 16):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_the_limit_of_a_body_in_time_is_kept_and_its_place_comes_back(door: Door) -> None:
    with socket.create_connection(("127.0.0.1", door.port), timeout=15) as connection:
        connection.sendall(head(content_length="100") + b"{")
        eventually(lambda: open_requests(door) == 1, 3.0)
    eventually(lambda: open_requests(door) == 0, 3.0)


def open_requests(door: Door) -> int:
    counters = next(p.counters for p in door.tree.client.ps().processes if p.name == "gateway-0")
    return counters["open"]


def test_an_error_quotes_no_control_characters(door: Door) -> None:
    forged = "x\n2026-01-01 E gateway-0 FORGED \x1b[31m"
    for body in (
        chat(model=forged),
        chat(**{forged: 1}),
        chat(content="hi", stop=[forged * 50]),
        {"messages": [{"role": forged, "content": "x"}]},
    ):
        answer = post(door.port, CHAT, body)
        assert answer.status in {400, 404}
        assert b"\n" not in answer.body
        assert b"\x1b" not in answer.body
        message = json.loads(answer.body)["error"]["message"]
        assert "\n" not in message
        assert "\x1b" not in message
