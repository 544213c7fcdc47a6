from __future__ import annotations

import shlex

import msgspec
import pytest

from hybridgen.config import Config, HttpSection
from hybridgen.errors import ConfigError
from hybridgen.launch.host import with_gateways
from hybridgen.launch.http_plan import check_http, curl_line, http_url
from tests.launch.test_plan import plan_of

EVERYWHERE = "0.0.0.0"  # noqa: S104  # to see it refused


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_this_machine_alone_needs_no_key(host: str) -> None:
    check_http(HttpSection(num_gateways=1, host=host))


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "192.168.1.2", "example.com"])
def test_an_open_door_needs_a_key_or_an_explicit_wish(host: str) -> None:
    with pytest.raises(ConfigError, match="without a key") as caught:
        check_http(HttpSection(num_gateways=1, host=host))
    assert host in str(caught.value.fields["value"])
    check_http(HttpSection(num_gateways=1, host=host, api_key_file="keys"))
    check_http(HttpSection(num_gateways=1, host=host, insecure=True))
    check_http(HttpSection(num_gateways=0, host=host))


def test_half_of_tls_is_refused() -> None:
    with pytest.raises(ConfigError, match="certificate and its key"):
        check_http(HttpSection(num_gateways=1, tls_certificate="a.pem"))
    check_http(HttpSection(num_gateways=1, tls_certificate="a.pem", tls_key="b.pem"))


def test_only_a_tree_without_an_owner_gets_a_gateway_unasked() -> None:
    assert with_gateways(Config(), is_public=True).http.num_gateways == 1
    assert with_gateways(Config(), is_public=False).http.num_gateways == 0
    for number in (0, 1):
        asked = Config(http=HttpSection(num_gateways=number))
        assert with_gateways(asked, is_public=False) == asked
        assert with_gateways(asked, is_public=True) == asked


@pytest.mark.parametrize("number", [-1, 0, 1])
def test_a_plan_has_the_gateways_that_were_asked_for(number: int) -> None:
    plan = plan_of(4, num_gateways=number)
    wanted = ["gateway-0"] if number == 1 else []
    assert [name for name in plan.worker_names if name.startswith("gateway")] == wanted
    assert plan.config.http.num_gateways == len(wanted)
    assert plan.geometry.num_processes == len(plan.worker_names)


def test_an_unsafe_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="without a key"):
        plan_of(4, num_gateways=1, host=EVERYWHERE)


@pytest.mark.parametrize(
    ("host", "options", "url"),
    [
        ("127.0.0.1", {}, "http://127.0.0.1:8080"),
        (EVERYWHERE, {}, "http://127.0.0.1:8080"),
        ("::", {}, "http://[::1]:8080"),
        ("localhost", {"tls_certificate": "a", "tls_key": "b"}, "https://localhost:8080"),
    ],
)
def test_the_url_can_be_used_on_this_machine(host: str, options: dict[str, str], url: str) -> None:
    assert http_url(HttpSection(host=host, **options)) == url


def test_the_curl_line_survives_a_shell() -> None:
    words = shlex.split(curl_line(HttpSection(), 'it\'s "mine"'))
    assert msgspec.json.decode(words[-1])["model"] == 'it\'s "mine"'
    assert "Bearer" not in " ".join(words)
    assert "Authorization: Bearer" in curl_line(HttpSection(api_key_file="keys"), "demo")


def test_a_unix_socket_needs_no_key_and_is_named_in_the_curl_line() -> None:
    http = HttpSection(num_gateways=1, host=EVERYWHERE, uds="/run/user/7/my http.sock")
    check_http(http)
    words = shlex.split(curl_line(http, "mock"))
    assert words[words.index("--unix-socket") + 1] == "/run/user/7/my http.sock"
    assert "http://localhost/v1/chat/completions" in words
