from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from hybridgen.client.chunk import StreamChunk
from hybridgen.errors import InvalidLogits, PoisonRequest
from hybridgen.server.app import App
from tests.support.asgi_driver import Visit, ask
from tests.support.front_door import CHAT, COMPLETION, make_app, play
from tests.support.scripted_backend import ScriptedBackend, Step, chunks

CHAT_PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True}
#: A client that leaves frees its slot within this time.
LEAVE_S = 0.25


def texts(visit: Visit, index: int = 0) -> str:
    """The text of one choice of a chat's stream."""
    choices = [c for e in visit.events if e != "[DONE]" for c in e["choices"]]
    return "".join(c["delta"].get("content", "") for c in choices if c["index"] == index)


def reasons(visit: Visit, index: int = 0) -> list[str]:
    choices = [c for e in visit.events if e != "[DONE]" for c in e.get("choices", [])]
    return [c["finish_reason"] for c in choices if c["index"] == index and c["finish_reason"]]


# --- what is sent -------------------------------------------------------------------------------


def test_a_stream_is_the_whole_text_with_one_end() -> None:
    async def scene() -> None:
        backend = ScriptedBackend(chunks("Hel", "lo", " world"))
        visit = await ask(make_app(backend), "POST", CHAT_PATH, STREAM)
        assert visit.status == 200
        assert visit.headers["content-type"].startswith("text/event-stream")
        assert visit.headers["cache-control"] == "no-store"
        assert "content-length" not in visit.headers
        assert visit.events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert texts(visit) == "Hello world"
        assert reasons(visit) == ["stop"]
        assert visit.events[-1] == "[DONE]"
        assert all("usage" not in e for e in visit.events[:-1])
        assert visit.is_complete
        assert [s.num_closed for s in backend.streams] == [1]

    play(scene())


def test_each_piece_is_one_frame_and_the_opening_comes_with_the_first() -> None:
    async def scene() -> None:
        gates = [asyncio.Event() for _ in range(2)]
        script: list[Step] = [*chunks("a"), gates[0], *chunks("b"), gates[1]]
        visit = Visit(make_app(ScriptedBackend(script)), "POST", CHAT_PATH, STREAM).begin()
        await visit.frames_come(1)
        assert texts(visit) == "a"
        gates[0].set()
        await visit.frames_come(2)
        assert texts(visit) == "ab"
        gates[1].set()
        await visit.done()
        assert len(visit.frames) == 3  # a, b, the end

    play(scene())


def test_a_piece_without_text_is_no_frame() -> None:
    async def scene() -> None:
        script: list[Step] = [*chunks("a"), StreamChunk("", [7])]
        visit = await ask(make_app(ScriptedBackend(script)), "POST", CHAT_PATH, STREAM)
        assert b"" not in visit.frames
        assert texts(visit) == "a"

    play(scene())


def test_a_request_that_generates_nothing_still_opens_and_ends() -> None:
    async def scene() -> None:
        visit = await ask(make_app(ScriptedBackend([])), "POST", CHAT_PATH, STREAM)
        assert visit.events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert reasons(visit) == ["stop"]

    play(scene())


def test_usage_is_told_only_when_asked_for_and_last() -> None:
    async def scene() -> None:
        backend = ScriptedBackend(chunks("a", "b"), chunks("c"))
        body = {**STREAM, "n": 2, "stream_options": {"include_usage": True}}
        visit = await ask(make_app(backend), "POST", CHAT_PATH, body)
        assert visit.events[-2]["choices"] == []
        assert visit.events[-2]["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert all(e["usage"] is None for e in visit.events[:-2])

    play(scene())


def test_several_prompts_count_each_prompt_once() -> None:
    async def scene() -> None:
        body = {**COMPLETION, "prompt": ["a", "b"], "n": 2, "stream": True}
        body["stream_options"] = {"include_usage": True}
        visit = await ask(make_app(ScriptedBackend(chunks("x"))), "POST", "/v1/completions", body)
        assert visit.events[-2]["usage"]["prompt_tokens"] == 6
        assert visit.events[-2]["usage"]["completion_tokens"] == 4

    play(scene())


def test_several_choices_are_merged_as_they_arrive() -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        backend = ScriptedBackend([gate, *chunks("s", "low")], chunks("f", "as", "t"))
        visit = Visit(make_app(backend), "POST", CHAT_PATH, {**STREAM, "n": 2}).begin()
        await visit.frames_come(4)
        assert (texts(visit, 0), texts(visit, 1)) == ("", "fast")
        assert reasons(visit, 1) == ["stop"]
        gate.set()
        await visit.done()
        assert texts(visit, 0) == "slow"
        for index in (0, 1):
            assert reasons(visit, index) == ["stop"]
            own = [e["choices"][0] for e in visit.events[:-1] if e["choices"][0]["index"] == index]
            assert ["role" in choice["delta"] for choice in own].count(True) == 1
            assert own[0]["delta"]["role"] == "assistant"
            assert own[-1]["finish_reason"] == "stop"
        assert visit.events[-1] == "[DONE]"

    play(scene())


# --- errors -------------------------------------------------------------------------------------


def test_an_error_before_the_first_piece_has_its_own_status() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend([InvalidLogits("NaN")]))
        visit = await ask(app, "POST", CHAT_PATH, STREAM)
        assert visit.status == 500
        assert visit.error["code"] == "invalid_logits"
        assert app.counters.streams == 0

    play(scene())


@pytest.mark.parametrize("n", [1, 3])
def test_an_error_in_mid_stream_is_an_event_and_the_end(n: int) -> None:
    async def scene() -> None:
        never = asyncio.Event()
        failing: list[Step] = [*chunks("a"), PoisonRequest("two deaths")]
        backend = ScriptedBackend(failing, [*chunks("b"), never])
        app = make_app(backend)
        visit = await ask(app, "POST", CHAT_PATH, {**STREAM, "n": n})
        assert visit.status == 200
        error = visit.events[-1]["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "poison_request"
        assert visit.is_complete
        assert [s.num_closed for s in backend.streams] == [1] * n
        assert app.counters.errors == 1

    play(scene())


def test_a_bug_in_mid_stream_is_an_event_too() -> None:
    async def scene() -> None:
        backend = ScriptedBackend([*chunks("a"), ZeroDivisionError("secret")])
        visit = await ask(make_app(backend), "POST", CHAT_PATH, STREAM)
        assert visit.events[-1]["error"]["code"] == "internal_error"
        assert b"secret" not in visit.body

    play(scene())


def test_a_stream_that_was_cancelled_elsewhere_does_not_look_finished() -> None:
    async def scene() -> None:
        backend = ScriptedBackend(chunks("a"), finish_reason="cancelled")
        visit = await ask(make_app(backend), "POST", CHAT_PATH, STREAM)
        assert visit.events[-1]["error"]["code"] == "cancelled"
        assert reasons(visit) == []

    play(scene())


# --- clients that leave -------------------------------------------------------------------------


async def leaves(app: App, visit: Visit) -> None:
    """The client goes, and its work has ended in time."""
    visit.leave()
    began_s = time.monotonic()
    await visit.done()
    assert time.monotonic() - began_s < LEAVE_S
    assert app.counters.disconnects == 1
    assert app.counters.open == 0


@pytest.mark.parametrize("http_version", ["1.1", "2"])
@pytest.mark.parametrize("body", [CHAT, STREAM, {**CHAT, "n": 3}, {**STREAM, "n": 3}])
@pytest.mark.parametrize("num_pieces", [0, 2])
def test_a_client_that_leaves_while_queued_or_decoding_frees_its_slots(
    http_version: str, body: dict[str, Any], num_pieces: int
) -> None:
    async def scene() -> None:
        never = asyncio.Event()
        backend = ScriptedBackend([*chunks(*"ab"[:num_pieces]), never])
        app = make_app(backend)
        visit = Visit(app, "POST", CHAT_PATH, body, http_version=http_version).begin()
        await visit.body_is_taken()
        if num_pieces and "stream" in body:
            await visit.frames_come(num_pieces * body.get("n", 1))
        await leaves(app, visit)
        assert [s.num_closed for s in backend.streams] == [1] * body.get("n", 1)

    play(scene())


def test_a_client_that_leaves_with_a_frame_unread_frees_its_slot() -> None:
    async def scene() -> None:
        never = asyncio.Event()
        backend = ScriptedBackend([*chunks("a", "b", "c"), never])
        app = make_app(backend)
        visit = Visit(app, "POST", CHAT_PATH, STREAM)
        visit.stop_reading()
        visit.begin()
        await visit.body_is_taken()
        await leaves(app, visit)
        assert backend.streams[0].num_closed == 1

    play(scene())


def test_a_client_that_leaves_while_its_text_is_encoded_ends_the_wait() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        backend.tokenize_gate = asyncio.Event()
        app = make_app(backend)
        visit = Visit(app, "POST", "/tokenize", {"prompt": "abc"}).begin()
        await visit.body_is_taken()
        await leaves(app, visit)

    play(scene())


# --- clients that do not read -------------------------------------------------------------------


def test_nothing_piles_up_for_a_client_that_does_not_read() -> None:
    async def scene() -> None:
        backend = ScriptedBackend(chunks(*["x"] * 1000))
        visit = Visit(make_app(backend), "POST", CHAT_PATH, STREAM)
        visit.stop_reading()
        visit.begin()
        await visit.body_is_taken()
        await asyncio.sleep(0.02)
        assert backend.streams[0].num_steps_left == 999
        visit.read_on()
        await visit.done()
        assert texts(visit) == "x" * 1000

    play(scene())


@pytest.mark.parametrize("http_version", ["1.1", "2"])
def test_a_client_that_never_reads_is_cancelled(http_version: str) -> None:
    async def scene() -> None:
        backend = ScriptedBackend(chunks(*["x"] * 1000))
        app = make_app(backend, slow_reader_timeout_s=0.1)
        visit = Visit(app, "POST", CHAT_PATH, STREAM, http_version=http_version)
        visit.stop_reading()
        await visit.done()
        assert not visit.is_complete
        assert backend.streams[0].num_steps_left == 999
        assert backend.streams[0].num_closed == 1
        assert app.counters.disconnects == 1

    play(scene())


def test_a_slow_text_is_not_taken_for_a_slow_reader() -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        app = make_app(
            ScriptedBackend([*chunks("a"), gate, *chunks("b")]), slow_reader_timeout_s=0.04
        )
        visit = Visit(app, "POST", CHAT_PATH, STREAM).begin()
        await visit.frames_come(1)
        await asyncio.sleep(0.15)
        gate.set()
        await visit.done()
        assert texts(visit) == "ab"

    play(scene())
