"""What web pages of other servers can do: nothing, unless they are allowed to."""

from __future__ import annotations

import pytest

from hybridgen.config import HttpSection
from hybridgen.errors import ConfigError
from hybridgen.server.auth import ApiKeys
from hybridgen.server.origins import AllowedOrigins
from tests.support.asgi_driver import Visit, ask
from tests.support.front_door import CHAT, make_app, play
from tests.support.scripted_backend import ScriptedBackend

PAGE = "https://app.example.com"
CHAT_PATH = "/v1/chat/completions"
QUESTION = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def of(origins: str) -> AllowedOrigins | None:
    return AllowedOrigins.of(HttpSection(allowed_origins=origins))


def cors_headers(visit: Visit) -> dict[str, str]:
    return {k: v for k, v in visit.headers.items() if k.startswith("access-control-")}


@pytest.mark.parametrize("origins", ["", "https://other.example.com"])
def test_a_page_of_another_server_can_read_nothing(origins: str) -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), origins=of(origins))
        for method, path in (("POST", CHAT_PATH), ("GET", "/version"), ("GET", "/nowhere")):
            visit = await ask(app, method, path, CHAT, headers={"origin": PAGE})
            assert cors_headers(visit) == {}
        visit = await ask(app, "OPTIONS", CHAT_PATH, headers={"origin": PAGE, **QUESTION})
        assert visit.status == 405
        assert cors_headers(visit) == {}

    play(scene())


@pytest.mark.parametrize(
    "kind",
    [
        *("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded"),
        *("multipart/form-data; boundary=x", "text/plain; application/json", None),
    ],
)
@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/completions", "/tokenize", "/detokenize"])
def test_what_a_page_can_send_without_asking_is_refused(path: str, kind: str | None) -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        headers = {"origin": PAGE, "content-type": kind}
        visit = await ask(make_app(backend), "POST", path, CHAT, headers=headers)
        assert visit.status == 415
        assert visit.error["param"] == "content-type"
        assert backend.streams == []

    play(scene())


def test_an_allowed_page_may_ask_send_and_read() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), origins=of(f"http://localhost:3000, {PAGE}"))
        visit = await ask(app, "OPTIONS", CHAT_PATH, headers={"origin": PAGE, **QUESTION})
        assert (visit.status, visit.body) == (204, b"")
        assert "content-length" not in visit.headers
        assert visit.headers["vary"] == "origin"
        assert cors_headers(visit) == {
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": "GET, HEAD, POST",
            "access-control-allow-headers": "authorization,content-type",
            "access-control-max-age": "600",
        }
        for body, status in ((CHAT, 200), ({**CHAT, "stream": True}, 200), ({}, 400)):
            visit = await ask(app, "POST", CHAT_PATH, body, headers={"origin": PAGE})
            assert visit.status == status
            assert visit.headers["access-control-allow-origin"] == PAGE
            assert "x-request-id" in visit.headers["access-control-expose-headers"]

    play(scene())


def test_the_question_of_a_browser_needs_no_key_but_the_request_does() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), keys=ApiKeys(["secret"]), origins=of("*"))
        visit = await ask(app, "OPTIONS", CHAT_PATH, headers={"origin": PAGE, **QUESTION})
        assert visit.status == 204
        assert visit.headers["access-control-allow-origin"] == "*"
        visit = await ask(app, "POST", CHAT_PATH, CHAT, headers={"origin": PAGE})
        assert visit.status == 401
        assert visit.headers["access-control-allow-origin"] == "*"

    play(scene())


def test_a_client_that_is_no_browser_sees_no_difference() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), origins=of("*"))
        assert cors_headers(await ask(app, "POST", CHAT_PATH, CHAT)) == {}
        assert (await ask(app, "OPTIONS", CHAT_PATH)).status == 405

    play(scene())


@pytest.mark.parametrize("origin", ["app.example.com", "https://a.example/", "https://*.a", "null"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="allowed_origins"):
        of(f"{PAGE},{origin}")
