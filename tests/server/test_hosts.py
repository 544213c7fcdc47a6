"""A page whose name was pointed at this machine gets no answer."""

from __future__ import annotations

from typing import Any

import pytest

from hybridgen.config import HttpSection
from hybridgen.errors import ConfigError
from hybridgen.server.hosts import AllowedHosts
from hybridgen.server.refusal import Refusal
from tests.support.asgi_driver import ask
from tests.support.front_door import CHAT, make_app, play
from tests.support.scripted_backend import ScriptedBackend

LOCAL = (
    *("localhost", "LOCALHOST:8080", "localhost.", "localhost.:80", "app.localhost:8080"),
    *("127.0.0.1", "127.0.0.1:8080", "127.8.9.10:1", "[::1]", "[::1]:8080"),
)
FOREIGN = (
    *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("notlocalhost", "192.168.1.2:8080", "0.0.0.0:8080", "[::2]:80", ":8080", "[", "]"),
    *("localhost@evil.example", "evil.example/localhost", "locàlhost", "127.1", "2130706433"),
)


def of(**options: Any) -> AllowedHosts | None:
    return AllowedHosts.of(HttpSection(**options))


def is_allowed(hosts: AllowedHosts, host: str) -> bool:
    try:
        hosts.check(host.encode())
    except Refusal:
        return False
    return True


@pytest.mark.parametrize("host", LOCAL)
def test_names_of_this_machine_are_answered_to(host: str) -> None:
    assert is_allowed(AllowedHosts(), host)


@pytest.mark.parametrize("host", FOREIGN)
def test_any_other_name_is_refused_by_name(host: str) -> None:
    with pytest.raises(Refusal) as caught:
        AllowedHosts().check(host.encode())
    assert (caught.value.status, caught.value.code) == (403, "host_not_allowed")
    assert caught.value.param == "host"
    assert "--allowed-hosts" in caught.value.message
    assert caught.value.message.isascii()


def test_a_request_without_a_host_is_from_no_browser() -> None:
    AllowedHosts().check(None)
    AllowedHosts().check(b"")


def test_only_a_server_on_loopback_without_a_key_looks_unasked() -> None:
    assert of() is not None
    assert of(host="::1") is not None
    assert of(api_key_file="keys") is None
    assert of(host="192.168.1.2", insecure=True) is None
    assert of(uds="/tmp/socket") is None  # not opened


def test_further_names_are_allowed_wherever_they_are_given() -> None:
    for options in ({}, {"api_key_file": "keys"}, {"host": "192.168.1.2"}):
        hosts = of(allowed_hosts="llm.example, Other.example", **options)
        assert hosts is not None
        for name in ("llm.example", "LLM.example:443", "other.example", "localhost"):
            assert is_allowed(hosts, name)
        assert not is_allowed(hosts, "evil.example")
        assert is_allowed(hosts, "192.168.1.2") == (options.get("host") == "192.168.1.2")
    assert of(allowed_hosts="*") is None


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "a b", "*.a.example"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="allowed_hosts"):
        of(allowed_hosts=f"good.example,{name}")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/", "/nowhere"])
def test_a_foreign_name_gets_nothing_but_the_error(path: str) -> None:
    async def scene() -> None:
        backend = ScriptedBackend()
        app = make_app(backend, hosts=AllowedHosts(), has_console=True)
        method = "POST" if path.startswith("/v1") else "GET"
        visit = await ask(app, method, path, CHAT, headers={"host": "evil.example:8080"})
        assert visit.status == 403
        assert visit.error["code"] == "host_not_allowed"
        assert visit.error["type"] == "invalid_request_error"
        assert visit.error["param"] == "host"
        assert backend.streams == []
        visit = await ask(app, method, path, CHAT, headers={"host": "127.0.0.1:8080"})
        assert visit.status in (200, 404)

    play(scene())


def test_two_names_at_once_are_refused() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend(), hosts=AllowedHosts())
        names = [(b"host", b"evil.example"), (b"host", b"localhost")]
        visit = await ask(app, "GET", "/version", raw_headers=names)
        assert visit.status == 400
        assert visit.error["code"] == "repeated_header"

    play(scene())
