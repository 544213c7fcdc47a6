"""The front door of a real tree: HTTP in, tokens out, whatever happens to the gateway."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hybridgen import SamplingParams
from hybridgen.client import Client
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.http_caller import Answer, events, get, post
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NUM_STREAMS = 8
#: Enough for a busy machine; how long it takes is measured by tools/kill_gateway.py.
REPLACED_S = 30.0
EXIT_UNAVAILABLE = 69
EVERYWHERE = "0.0.0.0"  # noqa: S104  # to see it refused
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


class Door:
    """A tree and the port of its gateway."""

    def __init__(self, tree: RunningTree, port: int) -> None:
        self.tree = tree
        self.port = port

    def chat(self, **options: Any) -> Answer:
        return post(self.port, CHAT, chat_body(**options))

    def chat_events(self, **options: Any) -> list[Any]:
        return list(events(self.port, CHAT, chat_body(stream=True, **options)))


def chat_body(text: str = "Hello", **options: Any) -> dict[str, Any]:
    fixed = {"seed": 7, "max_tokens": 24, "min_tokens": 24}
    return {"model": "mock", "messages": [{"role": "user", "content": text}], **fixed, **options}


def text_of(chunks: list[Any]) -> str:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk != "[DONE]"]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    port = free_port()
    with running_tree(
        model="mock", mock_step_us=1000, num_gateways=1, port=port, pool_restart_limit=100
    ) as tree:
        yield Door(tree, port)


def test_a_chat_is_answered_whole(door: Door) -> None:
    answer = door.chat()
    assert answer.status == 200
    body = answer.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "mock"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 24


def test_a_stream_is_the_whole_answer_in_pieces(door: Door) -> None:
    chunks = door.chat_events(stream_options={"include_usage": True})
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["usage"]["completion_tokens"] == 24
    assert text_of(chunks[:-2]) == door.chat().json()["choices"][0]["message"]["content"]
    reasons = [choice["finish_reason"] for chunk in chunks[:-1] for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["length"]


def test_a_drawn_seed_is_told_and_gives_the_same_text_again(door: Door) -> None:
    choice = door.chat(seed=None).json()["choices"][0]
    again = door.chat(seed=choice["seed"]).json()["choices"][0]
    assert again["message"] == choice["message"]
    assert 0 <= choice["seed"] < 2**53
    *_, last, _done = door.chat_events(seed=choice["seed"])
    assert last["choices"][0]["seed"] == choice["seed"]


def test_a_text_is_continued_as_the_sdk_does(door: Door) -> None:
    body = {"model": "mock", "prompt": "Once", "max_tokens": 16, "min_tokens": 16, "seed": 7}
    text = post(door.port, COMPLETIONS, body).json()["choices"][0]["text"]
    chunks = list(events(door.port, COMPLETIONS, {**body, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == text


def test_the_openai_package_is_served(door: Door) -> None:
    import openai

    messages: Any = [{"role": "user", "content": "Hello"}]
    options: Any = {"model": "mock", "messages": messages, "max_tokens": 24, "seed": 7}
    with openai.OpenAI(base_url=f"http://127.0.0.1:{door.port}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["mock"]
        whole = client.chat.completions.create(**options)
        pieces = list(client.chat.completions.create(**options, stream=True))
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**options, temperature=-1.0)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**options, "model": "another"})
    texts = [piece.choices[0].delta.content or "" for piece in pieces]
    assert "".join(texts) == whole.choices[0].message.content
    assert caught.value.param == "temperature"


def test_models_health_and_version_are_shown(door: Door) -> None:
    assert [model["id"] for model in get(door.port, "/v1/models").json()["data"]] == ["mock"]
    for path in ("/health", "/health/live", "/health/ready", "/health/startup", "/version"):
        assert get(door.port, path).status == 200, path
    names = [process["name"] for process in get(door.port, "/ps").json()["processes"]]
    assert "gateway-0" in names


def test_a_tree_is_described_alike_wherever_it_is_asked(door: Door) -> None:
    over_http = get(door.port, "/ps").json()
    for command in (["ps", "--json"], ["top", "--json", "--interval-s", "0.1"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hybridgen", *command, "--uri", door.tree.handle.uri],
            capture_output=True,
            timeout=30,
            check=True,
        )
        printed = msgspec.json.decode(done.stdout)
        (facts,) = printed if isinstance(printed, list) else [printed]
        assert facts["uri"] == door.tree.handle.uri
        assert set(facts) - {"uri", "figures"} == set(over_http)
        for here, there in zip(facts["processes"], over_http["processes"], strict=True):
            assert set(here) == set(there)
            assert (here["name"], here["pid"]) == (there["name"], there["pid"])


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"messages": 1}', b"\xff\xfe"])
def test_what_is_no_request_is_refused_with_all_four_fields(door: Door, body: bytes) -> None:
    answer = post(door.port, CHAT, body)
    assert answer.status == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_many_streams_at_once_are_each_their_own(door: Door) -> None:
    texts = [f"number {n}" for n in range(NUM_STREAMS)]
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        streamed = list(pool.map(lambda text: text_of(door.chat_events(text=text)), texts))
    whole = [door.chat(text=text).json()["choices"][0]["message"]["content"] for text in texts]
    assert streamed == whole
    assert len(set(whole)) == NUM_STREAMS


def test_a_client_that_leaves_frees_its_slot(door: Door) -> None:
    stream = events(door.port, CHAT, chat_body(stream=True, max_tokens=1800, min_tokens=1800))
    next(stream)
    assert door.tree.client.health().num_running == 1
    stream.close()
    eventually(lambda: door.tree.client.health().num_running == 0, 2.0)


def test_the_board_counts_requests(door: Door) -> None:
    before = gateway_counters(door)
    for _ in range(50):  # more than other tests may have left uncounted
        assert get(door.port, "/nowhere").status == 404

    def are_counted() -> bool:
        now = gateway_counters(door)
        return all(now[name] >= before[name] + 50 for name in ("requests", "refused"))

    eventually(are_counted, 5.0)


def gateway_counters(door: Door) -> dict[str, int]:
    return next(p.counters for p in door.tree.client.ps().processes if p.name == "gateway-0")


def test_the_gateway_is_lean_and_bears_its_name(door: Door) -> None:
    pid = door.tree.pid_of("gateway-0")
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    assert Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").endswith(b":gateway-0")


@needs_curl
@pytest.mark.parametrize(
    ("flag", "version"), [("--http1.1", "1.1"), ("--http2-prior-knowledge", "2")]
)
def test_one_port_speaks_both_versions_of_http(door: Door, flag: str, version: str) -> None:
    done = subprocess.run(
        [
            *("curl", "-sN", flag, "-w", "%{http_version}", f"http://127.0.0.1:{door.port}{CHAT}"),
            *("-H", "content-type: application/json"),
            *("-d", '{"model":"mock","stream":true,"messages":[{"role":"user","content":"Hi"}]}'),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert "data: {" in done.stdout
    assert done.stdout.endswith(f"data: [DONE]\n\n{version}")


def test_a_killed_gateway_is_replaced_and_nobody_else_notices(door: Door) -> None:
    for _ in range(3):
        own = door.tree.client.submit("Hello", long_params())
        lost = events(door.port, CHAT, chat_body(stream=True, max_tokens=1800, min_tokens=1800))
        next(lost)
        num_cancelled = door.tree.num_cancelled()
        old_pid = door.tree.kill("gateway-0")
        eventually(partial(door.tree.has_cancelled, num_cancelled + 1), REPLACED_S)
        eventually(lambda: answers(door), REPLACED_S)
        door.tree.wait_replaced("gateway-0", old_pid, REPLACED_S)
        assert own.result().finish_reason == "length"
        lost.close()


def long_params() -> SamplingParams:
    return SamplingParams(max_tokens=1500, min_tokens=1500)


def answers(door: Door) -> bool:
    try:
        return door.chat(max_tokens=1, min_tokens=1).status == 200
    except OSError:
        return False


def test_a_stop_finishes_what_runs_and_refuses_what_comes() -> None:
    port = free_port()
    with running_tree(model="mock", mock_step_us=2000, num_gateways=1, port=port) as tree:
        stream = events(port, CHAT, chat_body(stream=True, max_tokens=500, min_tokens=500))
        chunks = [next(stream)]
        tree.client.stop()

        def is_refused() -> bool:
            answer = post(port, CHAT, chat_body(max_tokens=1, min_tokens=1))
            return answer.status == 503 and bool(answer.headers["retry-after"])

        eventually(is_refused, 2.0)
        chunks += stream
        assert chunks[-1] == "[DONE]"
        assert [choice["finish_reason"] for choice in chunks[-2]["choices"]] == ["length"]
        assert tree.handle.stop() == 0


def test_a_stop_waits_for_a_reader_who_is_behind() -> None:
    port = free_port()
    body = chat_body(stream=True, max_tokens=7000, min_tokens=7000, logprobs=True, top_logprobs=20)
    with (
        running_tree(model="mock", mock_max_model_len=8192, num_gateways=1, port=port) as tree,
        socket.socket() as reader,
    ):
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        reader.connect(("127.0.0.1", port))
        reader.sendall(raw_post(CHAT, body))
        eventually(lambda: tree.client.health().num_running == 1)
        os.kill(tree.handle.pid, signal.SIGTERM)
        eventually(lambda: state_of(tree, "gateway-0") == "draining", 30.0)
        assert state_of(tree, "coscheduler-0") == "ready"
        received = b"".join(iter(lambda: reader.recv(1 << 20), b""))
        assert b"data: [DONE]" in received[-100:]
        assert tree.handle.stop() == 0


def test_a_stop_does_not_wait_for_a_reader_who_never_reads() -> None:
    port = free_port()
    body = chat_body(stream=True, max_tokens=7000, min_tokens=7000, logprobs=True, top_logprobs=20)
    with (
        running_tree(
            model="mock",
            mock_max_model_len=8192,
            num_gateways=1,
            port=port,
            drain_timeout_s=1.0,
        ) as tree,
        socket.create_connection(("127.0.0.1", port)) as reader,
    ):
        reader.sendall(raw_post(CHAT, body))
        eventually(lambda: tree.client.health().num_running == 1)
        started_s = time.monotonic()
        assert tree.handle.stop() == 0
        assert time.monotonic() - started_s < 5.0


def raw_post(path: str, body: object) -> bytes:
    content = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def state_of(tree: RunningTree, name: str) -> str:
    return next(p.state for p in tree.client.ps().processes if p.name == name)


def test_a_tree_of_a_program_has_no_gateway() -> None:
    with running_tree(model="mock") as tree:
        assert not [p.name for p in tree.client.ps().processes if p.role == "gateway"]


def test_a_taken_port_ends_the_start_with_its_own_code(door: Door) -> None:
    done = serve("--port", str(door.port))
    assert done.returncode == EXIT_UNAVAILABLE, done.stderr
    assert f"127.0.0.1 port {door.port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert door.chat().status == 200


def test_an_open_door_without_a_key_is_refused() -> None:
    done = serve("--port", str(free_port()), "--host", EVERYWHERE)
    assert done.returncode == 2
    assert "--api-key-file" in done.stderr


def test_a_key_is_asked_for_and_accepted(tmp_path: Path) -> None:
    port, keys = free_port(), tmp_path / "keys"
    keys.write_text("# ours\nsecret-key\n")
    with running_tree(model="mock", num_gateways=1, port=port, api_key_file=str(keys)):
        assert post(port, CHAT, chat_body()).status == 401
        assert get(port, "/health").status == 200


@needs_curl
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(("flag", "version"), [("--http1.1", "1.1"), ("--http2", "2")])
def test_tls_is_on_with_a_certificate(tmp_path: Path, flag: str, version: str) -> None:
    port, certificate, key = free_port(), tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
            *("-out", str(certificate), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    options = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with running_tree(model="mock", num_gateways=1, port=port, **options):
        done = subprocess.run(
            [
                *("curl", "-s", flag, "--cacert", str(certificate), "-w", " %{http_version}"),
                f"https://127.0.0.1:{port}/health/live",
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    assert done.stdout == f'{{"status":"live"}} {version}'


def test_serve_shows_the_address_and_a_line_to_paste(tmp_path: Path) -> None:
    port, uri_file = free_port(), tmp_path / "uri"
    command = (sys.executable, "-P", "-m", "hybridgen", "serve", "mock", "-p", str(port))
    with subprocess.Popen(
        [*command, "--uri-file", str(uri_file)], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            eventually(uri_file.exists, 30.0)
            assert get(port, "/health").status == 200
            with Client(uri_file.read_text().strip()) as client:
                assert "gateway-0" in [process.name for process in client.ps().processes]
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert f"http://127.0.0.1:{port}/v1, no key needed" in errors
    assert f"curl http://127.0.0.1:{port}{CHAT}" in errors


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "hybridgen", "serve", "mock", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
