"""Garbage and oversized frames on every socket of a tree that serves: counted, and no more.

The control sockets of children have no address that a stranger could reach; their own tests are
``tests/launch/test_child.py`` and ``tests/workers/test_lifecycle.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from hybridgen import SamplingParams
from hybridgen.ipc.runtime_dir import Endpoints, parse_uri
from hybridgen.ipc.zmq_options import MAX_CLIENT_FRAME_BYTES
from hybridgen.launch.admin import MAX_FRAME_BYTES
from hybridgen.messages import DrainWorker, encode
from tests.support.eventually import eventually
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NUM_TOKENS = 400
GARBAGE = [
    [b""],
    [b"\xc1"],
    [b"\xff" * 10_000],
    [b"\x91" * 5000],
    [encode(DrainWorker())],  # a message, but of nobody who may say it
    [b"one", b"two", b"three"],
]


def ask(tree: RunningTree, number: int) -> str:
    params = SamplingParams(
        temperature=0.9, seed=number, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS
    )
    return tree.client.generate(f"Number {number}?", params).text


@contextmanager
def stranger(endpoint: str, identity: bytes = b"stranger") -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 5000
    socket.routing_id = identity
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


def counted(tree: RunningTree, role: str) -> int:
    processes = tree.client.ps().processes
    return sum(process.counters["corrupt_frames"] for process in processes if process.role == role)


def is_cut_off(endpoint: str, num_bytes: int) -> bool:
    """Send one frame of that size; whether its sender is disconnected."""
    with stranger(endpoint, b"oversized") as socket:
        socket.linger = 0
        events = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.send(bytes(num_bytes))
        has_ended = bool(events.poll(5000))
        socket.disable_monitor()
        events.close()
    return has_ended


def test_streams_go_on_beside_garbage_on_every_socket() -> None:
    options = {"mock_step_us": 2000, "num_gateways": 0, "num_cpu_threads": 1}
    with running_tree(model="mock", **options) as tree:
        expected = ask(tree, 1)
        before = [(process.name, process.pid) for process in tree.client.ps().processes]
        ends = Endpoints(parse_uri(tree.handle.uri))
        limits = {
            ends.clients: MAX_CLIENT_FRAME_BYTES,
            ends.workers: MAX_CLIENT_FRAME_BYTES,
            ends.text(0): MAX_CLIENT_FRAME_BYTES,
            ends.admin: MAX_FRAME_BYTES,
        }
        params = SamplingParams(
            temperature=0.9, seed=1, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS
        )
        stream = tree.client.submit("Number 1?", params)
        for endpoint, limit_bytes in limits.items():
            with stranger(endpoint) as socket:
                for frames in GARBAGE:
                    socket.send_multipart(frames)
            assert is_cut_off(endpoint, limit_bytes + 1), endpoint
        assert stream.result().text == expected
        eventually(lambda: counted(tree, "coscheduler") == 2 * len(GARBAGE), 5.0)
        for role in ("detokenizer", "supervisor"):
            eventually(lambda role=role: counted(tree, role) == len(GARBAGE), 5.0)
        assert [(process.name, process.pid) for process in tree.client.ps().processes] == before
