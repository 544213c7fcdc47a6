"""Frames on real sockets are dropped, doubled, delayed and overtaken: every text stays whole.

The edges between clients and the coscheduler or a detokenizer, and between that and workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hybridgen import SamplingParams
from hybridgen.client import Client
from hybridgen.client.limits import ClientLimits
from hybridgen.ipc.runtime_dir import Endpoints, parse_uri
from tests.support.eventually import eventually
from tests.support.fault_proxy import Mishap, Mishaps
from tests.support.faulty_tree import faulty_tree
from tests.support.running_tree import RunningTree, running_tree
from tests.support.socket_proxy import SocketProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

OPTIONS = {
    "model": "mock",
    "mock_step_us": 1000,
    "num_detokenizers": 2,
    "num_tokenizers": 2,
    "num_cpu_threads": 1,
    "num_gateways": 0,
}
NUM_STREAMS = 12
NUM_TOKENS = 60
NUM_LISTINGS, NUM_STOPS = 20, 2
#: A client that asks again soon, since much of what it says is lost here.
IMPATIENT = ClientLimits(resend_s=0.2, silence_s=0.5)


def ask_all(client: Client) -> list[str]:
    streams = [
        client.submit(
            f"Number {n}?",
            SamplingParams(temperature=0.9, seed=n, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS),
        )
        for n in range(NUM_STREAMS)
    ]
    return [stream.result().text for stream in streams]


def is_at_rest(client: Client) -> bool:
    report = client.health()
    is_free = report.num_free_slots == report.num_slots
    return is_free and report.num_free_blocks == report.num_blocks


@contextlib.contextmanager
def proxied_client(tree: RunningTree, mishaps: Mishaps) -> Iterator[tuple[Client, SocketProxy]]:
    """A client that reaches ``tree`` through proxies alone."""
    with TemporaryDirectory(prefix="hg-") as folder:
        real, front = Endpoints(parse_uri(tree.handle.uri)), Endpoints(Path(folder))
        routes = {front.clients: real.clients, front.admin: real.admin}
        routes |= {front.text(n): real.text(n) for n in range(OPTIONS["num_detokenizers"])}
        with SocketProxy(routes, mishaps, seed=1) as proxy, Client(folder, limits=IMPATIENT) as one:
            yield one, proxy


@pytest.fixture(scope="module")
def tree() -> Iterator[RunningTree]:
    with running_tree(**OPTIONS) as started:
        yield started


@pytest.fixture(scope="module")
def expected(tree: RunningTree) -> list[str]:
    return ask_all(tree.client)


@pytest.mark.parametrize("mishap", Mishap)
def test_a_clients_text_is_whole_whatever_happens_on_the_way(
    tree: RunningTree, expected: list[str], mishap: Mishap
) -> None:
    with proxied_client(tree, Mishaps.of(mishap, share=0.2)) as (client, proxy):
        assert ask_all(client) == expected
        assert proxy.num_mishaps(mishap)
    eventually(lambda: is_at_rest(tree.client), 30.0)


@pytest.mark.parametrize("mishap", Mishap)
def test_the_supervisor_answers_whatever_happens_on_the_way(
    tree: RunningTree, mishap: Mishap
) -> None:
    with proxied_client(tree, Mishaps.of(mishap, share=0.3)) as (client, proxy):
        names = [process.name for process in tree.client.ps().processes]
        for _ in range(NUM_LISTINGS):
            assert [process.name for process in client.ps().processes] == names
        assert proxy.num_mishaps(mishap)


@pytest.mark.parametrize("mishap", [Mishap.DROP, Mishap.DOUBLE])
def test_a_tree_is_stopped_once_whatever_happens_to_the_order(mishap: Mishap) -> None:
    with running_tree(**OPTIONS | {"mock_step_us": 3000}) as own:
        stream = own.client.submit("Number?", SamplingParams(max_tokens=1500, min_tokens=1500))
        next(iter(stream))
        with proxied_client(own, Mishaps.of(mishap, share=0.3)) as (client, _):
            for _ in range(NUM_STOPS):  # a repeat of the order would cut the stream off
                client.stop(30.0)
            assert stream.result().finish_reason == "length"
        assert own.handle.stop() == 0


@pytest.mark.parametrize("mishap", Mishap)
def test_a_text_is_whole_whatever_happens_between_coscheduler_and_workers(
    expected: list[str], mishap: Mishap, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory(prefix="hg-") as folder:
        front, runtime_dir = f"ipc://{folder}/proxy", Path(folder, "tree")
        monkeypatch.setenv("WORKERS_PROXY", front)
        routes = {front: Endpoints(runtime_dir).workers}
        with (
            SocketProxy(routes, Mishaps.of(mishap, share=0.2), seed=1) as proxy,
            faulty_tree(monkeypatch, "", runtime_dir=str(runtime_dir), **OPTIONS) as tree,
        ):
            assert ask_all(tree.client) == expected
            assert proxy.num_mishaps(mishap)
            eventually(lambda: is_at_rest(tree.client), 30.0)
            shown = "repeated_frames" if mishap is Mishap.DOUBLE else "missed_frames"
            if mishap is not Mishap.DELAY:
                eventually(lambda: _counted(tree, shown) > 0, 5.0)


def _counted(tree: RunningTree, counter: str) -> int:
    processes = tree.client.ps().processes
    return sum(p.counters[counter] for p in processes if p.role == "coscheduler")
