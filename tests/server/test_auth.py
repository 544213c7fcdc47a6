from __future__ import annotations

import pytest

from hybridgen.errors import ConfigError
from hybridgen.server.auth import ApiKeys
from hybridgen.server.refusal import Refusal
from tests.support.asgi_driver import ask
from tests.support.front_door import CHAT, make_app, play
from tests.support.scripted_backend import ScriptedBackend

KEYS = ApiKeys(["first-key", "second-key"])
OPEN_PATHS = ["/health", "/health/live", "/health/ready", "/health/startup"]


@pytest.mark.parametrize(
    "value",
    [b"Bearer first-key", b"bearer second-key", b"BEARER  second-key "],
)
def test_each_key_is_accepted(value: bytes) -> None:
    KEYS.check(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"first-key",
        b"Basic first-key",
        b"Bearer first-ke",
        b"Bearer first-keyy",
        b"Bearer FIRST-KEY",
        b"Bearer first-key second-key",
        b"Bearer first-key\x00",
        b"Bearer \xff\xfe",
        b"Bearer # comment",
    ],
)
def test_anything_else_is_refused_without_an_echo(value: bytes | None) -> None:
    with pytest.raises(Refusal) as caught:
        KEYS.check(value)
    assert caught.value.status == 401
    assert (b"www-authenticate", b"Bearer") in caught.value.headers
    assert "first-key" not in caught.value.message


def test_a_key_file_has_one_key_a_line_and_comments() -> None:
    keys = ApiKeys.parse("# production\n\n  alpha \nbeta\r\n#gamma\n")
    assert [keys.accepts(key) for key in (b"alpha", b"beta", b"gamma", b"#gamma", b"")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_a_key_file_without_a_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no API key"):
        ApiKeys.parse(text)


@pytest.mark.parametrize("key", ["two words", "käse", "x" * 513, "bell\x07"])
def test_a_malformed_key_is_refused_by_number_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="number 2") as caught:
        ApiKeys(["good", key])
    assert key not in str(caught.value)


def test_nothing_that_is_kept_shows_a_key() -> None:
    assert b"first-key" not in repr(vars(KEYS)).encode()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/demo"),
        ("GET", "/version"),
        ("GET", "/ps"),
        ("GET", "/"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("GET", "/health/live/../../ps"),
        ("GET", "//health"),
        ("GET", "/health/../ps"),
        ("DELETE", "/v1/models"),
        ("OPTIONS", "/v1/chat/completions"),
    ],
)
def test_without_a_key_every_path_but_health_is_refused(method: str, path: str) -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        visit = await ask(make_app(backend, keys=KEYS), method, path, CHAT)
        assert visit.status == 401
        assert visit.headers["www-authenticate"] == "Bearer"
        assert visit.error["code"] == "invalid_api_key"
        assert visit.error["type"] == "authentication_error"
        assert backend.streams == []

    play(scene())


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_health_needs_no_key(path: str) -> None:
    async def scene() -> None:
        visit = await ask(make_app(ScriptedBackend(), keys=KEYS), "GET", path)
        assert visit.status == 200

    play(scene())


def test_a_key_opens_the_door() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), keys=KEYS)
        headers = {"authorization": "Bearer second-key"}
        visit = await ask(app, "POST", "/v1/chat/completions", CHAT, headers=headers)
        assert visit.status == 200
        missing = await ask(app, "GET", "/nowhere", headers=headers)
        assert missing.status == 404

    play(scene())


def test_two_authorization_headers_are_refused() -> None:
    async def scene() -> None:
        twice = [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer first-key")]
        visit = await ask(
            make_app(ScriptedBackend(), keys=KEYS), "GET", "/version", raw_headers=twice
        )
        assert visit.status == 400
        assert visit.error["param"] == "authorization"

    play(scene())
