from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from hybridgen.errors import ContextLengthExceeded, PeerGone, QueueFull
from hybridgen.request import ChatPrompt, TextPrompt
from tests.support.asgi_driver import Visit, ask
from tests.support.front_door import CHAT, COMPLETION, NOW_S, make_app, play
from tests.support.scripted_backend import LOADING, ScriptedBackend, chunks

CHAT_PATH = "/v1/chat/completions"
BODY = msgspec.json.encode(CHAT)


# --- answers ------------------------------------------------------------------------------------


def test_a_chat_is_answered() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        app = make_app(backend)
        visit = await ask(app, "POST", CHAT_PATH, {**CHAT, "priority": 3, "max_tokens": 5})
        assert visit.status == 200
        assert visit.headers["content-type"] == "application/json"
        assert visit.headers["content-length"] == str(len(visit.body))
        answer = visit.json
        assert answer["object"] == "chat.completion"
        assert answer["created"] == int(NOW_S)
        assert answer["model"] == "demo"
        assert answer["choices"][0]["message"]["content"] == "Hello world"
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        [stream] = backend.streams
        assert isinstance(stream.prompt, ChatPrompt)
        assert stream.params.max_tokens == 5
        assert stream.num_closed == 1
        assert backend.priorities == [3]

    play(scene())


def test_several_prompts_and_samples_are_answered_in_order_with_derived_seeds() -> None:
    async def scene() -> None:
        backend = ScriptedBackend(*(chunks(f"text {i}") for i in range(4)))
        body = {**COMPLETION, "prompt": ["a", "b"], "n": 2, "seed": 7}
        visit = await ask(make_app(backend), "POST", "/v1/completions", body)
        assert visit.status == 200
        choices = visit.json["choices"]
        assert [c["index"] for c in choices] == [0, 1, 2, 3]
        assert [c["text"] for c in choices] == [f"text {i}" for i in range(4)]
        assert [s.params.seed for s in backend.streams] == [7, 8, 7, 8]
        assert [s.prompt for s in backend.streams] == [TextPrompt(t) for t in "aabb"]
        assert visit.json["usage"]["prompt_tokens"] == 6
        assert visit.json["usage"]["completion_tokens"] == 4

    play(scene())


def test_one_failure_among_several_ends_them_all() -> None:
    async def scene() -> None:
        never = asyncio.Event()
        backend = ScriptedBackend([never], [ContextLengthExceeded("too long")])
        visit = await ask(make_app(backend), "POST", CHAT_PATH, {**CHAT, "n": 2})
        assert visit.status == 400
        assert visit.error["code"] == "context_length_exceeded"
        assert [s.num_closed for s in backend.streams] == [1, 1]

    play(scene())


def test_a_full_queue_says_when_to_come_back() -> None:
    async def scene() -> None:
        backend = ScriptedBackend([QueueFull("the backlog is full", retry_after_s=2.5)])
        app = make_app(backend)
        for body in (CHAT, {**CHAT, "stream": True}):
            visit = await ask(app, "POST", CHAT_PATH, body)
            assert visit.status == 429
            assert visit.headers["retry-after"] == "3"
            assert visit.headers["content-type"] == "application/json"
            assert visit.error["code"] == "queue_full"
        assert app.counters.refused == 2

    play(scene())


def test_an_unknown_model_is_refused_and_a_second_name_is_kept_inside() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        visit = await ask(app, "POST", CHAT_PATH, {**CHAT, "model": "gpt-4"})
        assert visit.status == 404
        assert visit.error["code"] == "model_not_found"
        assert visit.error["param"] == "model"
        visit = await ask(app, "POST", CHAT_PATH, {**CHAT, "model": "org/demo-8b"})
        assert visit.json["model"] == "org/demo-8b"

    play(scene())


def test_texts_become_ids_and_ids_texts() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        visit = await ask(app, "POST", "/tokenize", {"prompt": "abc"})
        assert visit.json == {"count": 3, "max_model_len": 2048, "tokens": [1, 2, 3]}
        visit = await ask(app, "POST", "/detokenize", {"tokens": [72, 105]})
        assert visit.json == {"prompt": "Hi"}
        visit = await ask(app, "POST", "/detokenize", {"tokens": [256]})
        assert visit.status == 400

    play(scene())


def test_models_version_and_processes_are_told() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        visit = await ask(app, "GET", "/v1/models")
        assert [model["id"] for model in visit.json["data"]] == ["demo", "org/demo-8b"]
        visit = await ask(app, "GET", "/v1/models/org/demo-8b")
        assert visit.json["id"] == "org/demo-8b"
        assert (await ask(app, "GET", "/v1/models/other")).status == 404
        assert (await ask(app, "GET", "/v1/models/")).status == 404
        assert set((await ask(app, "GET", "/version")).json) == {"version"}
        listing = (await ask(app, "GET", "/ps")).json
        assert listing["processes"][0]["pid"] == 42
        assert "request_id" not in listing

    play(scene())


# --- routing and headers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/chat", "/v1/chat/completions/", "/%00", "/é" * 999]
)
def test_an_unknown_path_is_not_found(path: str) -> None:
    async def scene() -> None:
        visit = await ask(make_app(ScriptedBackend()), "GET", path)
        assert visit.status == 404
        assert visit.error["code"] == "not_found"
        assert len(visit.body) < 1000

    play(scene())


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT_PATH, "POST"),
        ("PUT", CHAT_PATH, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/demo", "GET, HEAD"),
        ("BREW", "/health", "GET, HEAD"),
    ],
)
def test_another_method_is_refused_and_the_right_one_named(
    method: str, path: str, allowed: str
) -> None:
    async def scene() -> None:
        visit = await ask(make_app(ScriptedBackend()), method, path)
        assert visit.status == 405
        assert visit.headers["allow"] == allowed
        assert visit.error["code"] == "method_not_allowed"

    play(scene())


def test_head_has_the_length_but_no_body() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        whole = await ask(app, "GET", "/version")
        head = await ask(app, "HEAD", "/version")
        assert head.status == 200
        assert head.body == b""
        assert head.headers["content-length"] == str(len(whole.body))

    play(scene())


@pytest.mark.parametrize("given", ["abc-123", "trace:1/2@host", "x" * 128])
def test_a_request_id_is_echoed_in_answers_and_errors(given: str) -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        for method, path in (("GET", "/version"), ("GET", "/nowhere"), ("POST", CHAT_PATH)):
            visit = await ask(app, method, path, CHAT, headers={"x-request-id": given})
            assert visit.headers["x-request-id"] == given

    play(scene())


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\r\nset-cookie: x", "\x1b[31m", "é"])
def test_a_request_id_that_could_do_harm_is_replaced(given: str) -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        first = await ask(app, "GET", "/version", headers={"x-request-id": given})
        second = await ask(app, "GET", "/version")
        assert first.headers["x-request-id"].startswith("req-")
        assert first.headers["x-request-id"] != second.headers["x-request-id"]

    play(scene())


def test_too_many_headers_are_refused() -> None:
    async def scene() -> None:
        many = [(b"x-filler-%d" % i, b"y" * 1000) for i in range(70)]
        visit = await ask(make_app(ScriptedBackend()), "GET", "/version", raw_headers=many)
        assert visit.status == 431
        assert visit.error["code"] == "headers_too_large"

    play(scene())


def test_a_web_socket_is_closed() -> None:
    async def scene() -> None:
        sent = []

        async def receive() -> dict[str, str]:
            return {"type": "websocket.connect"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message["type"])

        await make_app(ScriptedBackend())({"type": "websocket"}, receive, send)
        assert sent == ["websocket.close"]

    play(scene())


# --- failures and ends --------------------------------------------------------------------------


def test_a_bug_is_a_500_without_its_text_and_the_server_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend([ZeroDivisionError("secret detail")], chunks("fine")))
        with caplog.at_level(logging.ERROR):
            visit = await ask(app, "POST", CHAT_PATH, CHAT)
        assert visit.status == 500
        assert visit.error["code"] == "internal_error"
        assert b"secret" not in visit.body
        assert "secret detail" in caplog.text
        assert app.counters.errors == 1
        assert (await ask(app, "POST", CHAT_PATH, CHAT)).status == 200

    play(scene())


def test_a_tree_that_is_not_there_is_a_503() -> None:
    async def scene() -> None:
        visit = await ask(
            make_app(ScriptedBackend([PeerGone("no coscheduler")])), "POST", CHAT_PATH, CHAT
        )
        assert visit.status == 503
        assert int(visit.headers["retry-after"]) >= 1

    play(scene())


def test_no_work_is_taken_before_the_tree_was_ready_once() -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        ready, backend.report = backend.report, LOADING
        app = make_app(backend)
        visit = await ask(app, "POST", CHAT_PATH, CHAT)
        assert visit.status == 503
        assert visit.error["code"] == "not_ready"
        assert "loading" in visit.error["message"]
        assert visit.headers["retry-after"] == "1"
        assert backend.streams == []
        backend.report = ready
        assert (await ask(app, "POST", CHAT_PATH, CHAT)).status == 200
        backend.report = LOADING  # a replaced process: the queue waits for it
        num_questions = backend.num_health_questions
        assert (await ask(app, "POST", CHAT_PATH, CHAT)).status == 200
        assert backend.num_health_questions == num_questions

    play(scene())


def test_a_draining_server_finishes_what_runs_and_refuses_the_rest() -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        backend = ScriptedBackend([*chunks("a"), gate, *chunks("b")])
        app = make_app(backend)
        running = Visit(app, "POST", CHAT_PATH, {**CHAT, "stream": True}).begin()
        await running.frames_come(1)
        app.start_draining()
        late = await ask(app, "POST", CHAT_PATH, CHAT)
        assert late.status == 503
        assert late.error["code"] == "draining"
        assert int(late.headers["retry-after"]) >= 1
        assert (await ask(app, "GET", "/version")).status == 200
        assert await app.wait_idle(0.01) == 1
        gate.set()
        assert await app.wait_idle(5.0) == 0
        assert running.events[-1] == "[DONE]"

    play(scene())


def test_a_cancellation_from_outside_is_no_answer() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend([asyncio.Event()]))
        visit = Visit(app, "POST", CHAT_PATH, CHAT).begin()
        await visit.body_is_taken()
        assert visit.task is not None
        visit.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit.task
        assert visit.status is None
        assert app.counters.open == 0

    play(scene())


def test_a_body_that_is_not_complete_when_draining_begins_is_refused() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        begun = Visit(app, "POST", CHAT_PATH, [BODY[:9]], is_endless=True).begin()
        await begun.body_is_taken()
        app.start_draining()
        begun.send_rest(BODY[9:])
        await begun.done()
        late = await Visit(app, "POST", CHAT_PATH, [BODY[:9]], is_endless=True).done()
        for visit in (begun, late):
            assert visit.status == 503
            assert visit.error["code"] == "draining"

    play(scene())


def test_what_is_open_at_the_end_of_the_drain_ends_with_an_error() -> None:
    async def scene() -> None:
        never = asyncio.Event()
        backend = ScriptedBackend([*chunks("a"), never])
        app = make_app(backend)
        begun = Visit(app, "POST", CHAT_PATH, {**CHAT, "stream": True}).begin()
        whole = Visit(app, "POST", CHAT_PATH, CHAT).begin()
        reading = Visit(app, "POST", CHAT_PATH, [b"{"], is_endless=True).begin()
        await begun.frames_come(1)
        assert await app.wait_idle(0.01) == 3
        app.cut_open()
        assert await app.wait_idle(1.0) == 0
        assert begun.events[-1]["error"]["code"] == "draining"
        assert begun.is_complete
        for visit in (whole, reading):
            assert visit.status == 503
            assert visit.error["code"] == "draining"
        assert [s.num_closed for s in backend.streams] == [1, 1]
        assert app.counters.open == 0

    play(scene())


def test_the_counters_count() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        await ask(app, "POST", CHAT_PATH, CHAT)
        await ask(app, "POST", CHAT_PATH, {**CHAT, "stream": True})
        await ask(app, "GET", "/nowhere")
        counters = app.counters
        assert (counters.requests, counters.streams, counters.refused) == (3, 1, 1)
        assert (counters.errors, counters.disconnects, counters.open) == (0, 0, 0)

    play(scene())
