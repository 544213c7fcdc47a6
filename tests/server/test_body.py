from __future__ import annotations

import msgspec
import pytest

from tests.support.asgi_driver import Visit, ask
from tests.support.front_door import CHAT, make_app, play
from tests.support.scripted_backend import ScriptedBackend

PATH = "/v1/chat/completions"
BODY = msgspec.json.encode(CHAT)


def test_a_body_in_many_chunks_is_read_whole() -> None:
    async def scene() -> None:
        pieces = [BODY[i : i + 7] for i in range(0, len(BODY), 7)]
        visit = await ask(make_app(ScriptedBackend()), "POST", PATH, [b"", *pieces, b""])
        assert visit.status == 200

    play(scene())


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read() -> None:
    async def scene() -> None:
        visit = Visit(
            make_app(ScriptedBackend(), max_body_bytes=100),
            "POST",
            PATH,
            [b""],
            {"content-length": "101"},
            is_endless=True,
        )
        await visit.done()
        assert visit.status == 413
        assert visit.error["code"] == "body_too_large"
        assert "101" in visit.error["message"]
        assert "100" in visit.error["message"]

    play(scene())


def test_a_body_that_grows_beyond_the_limit_is_refused() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), max_body_bytes=100)
        visit = Visit(app, "POST", PATH, [b"x" * 60, b"x" * 60], is_endless=True)
        await visit.done()
        assert visit.status == 413

    play(scene())


def test_a_body_that_never_ends_is_refused_in_time() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), body_timeout_s=0.05)
        visit = await Visit(app, "POST", PATH, [BODY], is_endless=True).done()
        assert visit.status == 408
        assert visit.error["code"] == "body_timeout"
        assert visit.headers["connection"] == "close"
        over_http2 = Visit(app, "POST", PATH, [BODY], is_endless=True, http_version="2")
        await over_http2.done()
        assert over_http2.status == 408
        assert "connection" not in over_http2.headers

    play(scene())


@pytest.mark.parametrize(
    "length", [str(len(BODY) - 1), str(len(BODY) + 1), "-1", "x", "", "1e2", "9" * 30]
)
def test_a_wrong_content_length_is_refused(length: str) -> None:
    async def scene() -> None:
        headers = {"content-length": length}
        visit = await ask(make_app(ScriptedBackend()), "POST", PATH, BODY, headers=headers)
        assert visit.status == 400
        assert visit.error["code"] == "wrong_content_length"
        assert visit.error["param"] == "content-length"

    play(scene())


def test_the_right_content_length_is_accepted() -> None:
    async def scene() -> None:
        headers = {"content-length": str(len(BODY))}
        visit = await ask(make_app(ScriptedBackend()), "POST", PATH, BODY, headers=headers)
        assert visit.status == 200

    play(scene())


@pytest.mark.parametrize(
    "media_type",
    [
        None,
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "application/json; charset=utf-16",
    ],
)
def test_another_media_type_is_refused(media_type: str | None) -> None:
    async def scene() -> None:
        headers = {"content-type": media_type}
        visit = await ask(make_app(ScriptedBackend()), "POST", PATH, BODY, headers=headers)
        assert visit.status == 415
        assert visit.error["param"] == "content-type"

    play(scene())


@pytest.mark.parametrize(
    "media_type",
    ["application/json; charset=utf-8", "Application/JSON;charset=UTF-8", "application/json;"],
)
def test_json_in_utf8_is_accepted_however_it_is_written(media_type: str) -> None:
    async def scene() -> None:
        headers = {"content-type": media_type}
        visit = await ask(make_app(ScriptedBackend()), "POST", PATH, BODY, headers=headers)
        assert visit.status == 200

    play(scene())


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip, identity"])
def test_a_packed_body_is_refused_unopened(encoding: str) -> None:
    async def scene() -> None:
        headers = {"content-encoding": encoding}
        visit = await ask(make_app(ScriptedBackend()), "POST", PATH, BODY, headers=headers)
        assert visit.status == 415
        assert visit.error["param"] == "content-encoding"

    play(scene())


def test_all_bodies_together_are_bounded_and_their_memory_comes_back() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), max_buffered_bytes=len(BODY) + 10)
        slow = Visit(app, "POST", PATH, [b"x" * 20], is_endless=True).begin()
        await slow.body_is_taken()
        visit = await ask(app, "POST", PATH, BODY)
        assert visit.status == 503
        assert visit.error["code"] == "too_many_bodies"
        assert visit.headers["retry-after"] == "1"
        slow.leave()
        await slow.done()
        for _ in range(3):
            assert (await ask(app, "POST", PATH, BODY)).status == 200

    play(scene())


def test_a_client_that_leaves_before_its_body_is_complete_is_not_answered() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        visit = Visit(app, "POST", PATH, [b"{"], is_endless=True).begin()
        visit.leave()
        await visit.done()
        assert visit.status is None
        assert app.counters.disconnects == 1
        assert app.counters.open == 0

    play(scene())


def test_a_client_whose_body_breaks_off_is_told_so() -> None:
    async def scene() -> None:
        visit = Visit(make_app(ScriptedBackend()), "POST", PATH, [b"{"], is_endless=True).begin()
        await visit.body_is_taken()
        visit.leave(reads_on=True)
        await visit.done()
        assert visit.status == 400
        assert visit.error["code"] == "incomplete_body"

    play(scene())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xef\xbb\xbf{}", b"\xff", b"{}{}"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    async def scene() -> None:
        visit = await ask(make_app(ScriptedBackend()), "POST", PATH, body)
        assert visit.status == 400
        assert visit.error["type"] == "invalid_request_error"

    play(scene())
