"""HTTP/2 as clients use it: many streams on a connection, beside HTTP/1.1, with and without TLS."""

from __future__ import annotations

import http.client
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("h2")

from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.http2_client import Http2Connection
from tests.support.http_caller import get, post
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT = "/v1/chat/completions"
NUM_STREAMS = 100
#: Enough for a busy machine.
FREED_S = 30.0


class Door:
    """A tree and the port of its gateway."""

    def __init__(self, tree: RunningTree, port: int) -> None:
        self.tree = tree
        self.port = port


def chat(text: str, num_tokens: int = 32, **options: Any) -> dict[str, Any]:
    counts = {"max_tokens": num_tokens, "min_tokens": num_tokens, "seed": 7, "stream": True}
    return {"messages": [{"role": "user", "content": text}], **counts, **options}


def text_of(events: list[Any]) -> str:
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1])


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    port = free_port()
    options = {"num_gateways": 1, "port": port, "max_num_seqs": 128, "mock_max_model_len": 8192}
    with running_tree(model="mock", **options) as tree:
        yield Door(tree, port)


def test_a_hundred_streams_share_a_connection(door: Door) -> None:
    with Http2Connection(door.port) as connection:
        streams = [connection.send("POST", CHAT, chat(f"number {n}")) for n in range(NUM_STREAMS)]
        connection.wait(*streams)
        answers = [connection.streams[one] for one in streams]
    assert all(answer.status == 200 for answer in answers)
    assert all(answer.events[-1] == "[DONE]" for answer in answers)
    texts = [text_of(answer.events) for answer in answers]
    whole = [post(door.port, CHAT, chat(f"number {n}", stream=False)) for n in range(0, 100, 33)]
    assert texts[::33] == [one.json()["choices"][0]["message"]["content"] for one in whole]
    assert len(set(texts)) == NUM_STREAMS


def check_freed(door: Door, num_cancelled: int) -> None:
    """Nothing runs any more, and so many did not end by themselves."""
    eventually(lambda: door.tree.client.health().num_running == 0, FREED_S)
    eventually(lambda: door.tree.has_cancelled(num_cancelled), FREED_S)


def test_a_stream_that_is_not_read_holds_up_no_other(door: Door) -> None:
    num_cancelled = door.tree.num_cancelled()
    with Http2Connection(door.port) as connection:
        large = chat("much", num_tokens=4000, logprobs=True, top_logprobs=20)
        slow = connection.send("POST", CHAT, large)
        connection.unread.add(slow)
        while connection.streams[slow].num_unread < 60_000:  # of a window of 65,535
            connection.read()
        started_s = time.monotonic()
        others = [connection.send("POST", CHAT, chat(f"other {n}")) for n in range(20)]
        connection.wait(*others)
        assert time.monotonic() - started_s < 5.0
        assert not connection.streams[slow].has_ended
        assert {connection.streams[one].status for one in others} == {200}
        connection.reset(slow)
        check_freed(door, num_cancelled + 1)
        assert connection.get("/version") == 200


def test_a_stream_that_is_reset_frees_its_place_and_the_others_go_on(door: Door) -> None:
    num_cancelled = door.tree.num_cancelled()
    with Http2Connection(door.port) as connection:
        taken_back = connection.send("POST", CHAT, chat("long", num_tokens=8000))
        other = connection.send("POST", CHAT, chat("short", num_tokens=200))
        while not connection.streams[taken_back].body:
            connection.read()
        connection.reset(taken_back)
        connection.wait(other)
        assert connection.streams[other].events[-1] == "[DONE]"
        check_freed(door, num_cancelled + 1)


def test_a_connection_that_ends_frees_all_its_places(door: Door) -> None:
    num_cancelled = door.tree.num_cancelled()
    with Http2Connection(door.port) as connection:
        streams = [connection.send("POST", CHAT, chat(f"{n}", num_tokens=8000)) for n in range(20)]
        while not all(connection.streams[one].body for one in streams):
            connection.read()
    check_freed(door, num_cancelled + len(streams))


def test_errors_are_told_on_their_stream(door: Door) -> None:
    with Http2Connection(door.port) as connection:
        bad = connection.send("POST", CHAT, chat("x", temperature=-1))
        good = connection.send("POST", CHAT, chat("x"))
        connection.wait(bad, good)
        assert connection.streams[bad].status == 400
        assert b'"param":"temperature"' in connection.streams[bad].body
        assert connection.streams[good].status == 200


def test_both_versions_are_spoken_at_the_same_time(door: Door) -> None:
    with Http2Connection(door.port) as connection:
        stream = connection.send("POST", CHAT, chat("x", num_tokens=200))
        assert get(door.port, "/version").status == 200
        connection.wait(stream)
        assert connection.streams[stream].status == 200


# --- TLS ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that signed itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    pair = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-out", str(pair[0]), "-keyout", str(pair[1])),
        ],
        check=True,
        capture_output=True,
    )
    return pair


def test_with_tls_the_version_is_agreed_on(certificate: tuple[Path, Path]) -> None:
    port = free_port()
    files = {"tls_certificate": str(certificate[0]), "tls_key": str(certificate[1])}
    tls = ssl.create_default_context(cafile=str(certificate[0]))
    with running_tree(model="mock", num_gateways=1, port=port, **files):
        old = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=10)
        old.request("GET", "/version")
        assert old.getresponse().read().startswith(b'{"version"')
        both = ssl.create_default_context(cafile=str(certificate[0]))
        both.set_alpn_protocols(["h2", "http/1.1"])
        with Http2Connection(port, both) as connection:
            streams = [connection.send("POST", CHAT, chat(f"{n}")) for n in range(20)]
            connection.wait(*streams)
            assert all(connection.streams[one].events[-1] == "[DONE]" for one in streams)
        old.request("GET", "/version")  # on the same connection
        assert old.getresponse().status == 200
        old.close()
