from __future__ import annotations

import pytest

from hybridgen.server.traffic import (
    FIRST_REQUEST_S,
    FREE_BYTES,
    FREE_BYTES_PER_S,
    SOON_S,
    Traffic,
    TrafficJudge,
)
from tests.support.asgi_driver import ask
from tests.support.front_door import CHAT, make_app, play
from tests.support.scripted_backend import ScriptedBackend

PEER = ("127.0.0.1", 4711)


def judge_of(num_seen: int | None) -> TrafficJudge:
    traffic = Traffic()
    if num_seen is not None:
        traffic.of(PEER).num_bytes += num_seen
    return TrafficJudge(traffic)


@pytest.mark.parametrize("num_seen", [0, 10**9])
def test_a_connection_may_bring_what_was_seen_twice_and_some_more(num_seen: int) -> None:
    allowed = FREE_BYTES + 2 * num_seen
    assert judge_of(num_seen).verdict(PEER, allowed, 100.0) == "fine"
    assert judge_of(num_seen).verdict(PEER, allowed + 1, 100.0) == "flood"


def test_time_allows_more() -> None:
    judge = judge_of(0)
    assert judge.verdict(PEER, 0, 100.0) == "fine"
    allowed = FREE_BYTES + 60 * FREE_BYTES_PER_S
    assert judge.verdict(PEER, allowed, 160.0) == "fine"
    assert judge.verdict(PEER, allowed + 1, 160.0) == "flood"


def test_a_connection_must_bring_a_request_in_time() -> None:
    judge = judge_of(None)
    assert judge.verdict(PEER, 0, 100.0) == "fine"
    assert judge.verdict(PEER, 0, 100.0 + FIRST_REQUEST_S / 2) == "fine"
    assert judge.verdict(PEER, 0, 100.0 + FIRST_REQUEST_S) == "silent"


def test_one_that_brought_a_request_may_be_silent() -> None:
    judge = judge_of(1)
    assert judge.verdict(PEER, 0, 100.0) == "fine"
    assert judge.verdict(PEER, 0, 100_000.0) == "fine"


def test_who_leaves_soon_without_asking_quits() -> None:
    judge = judge_of(None)
    judge.verdict(PEER, 0, 100.0)
    assert judge.quitters([PEER], 99.9 + SOON_S) == [PEER]
    assert judge.quitters([PEER], 100.0 + SOON_S) == []
    assert judge.quitters([("127.0.0.1", 1)], 100.0) == []  # never seen


def test_who_asked_does_not_quit() -> None:
    judge = judge_of(0)
    judge.verdict(PEER, 0, 100.0)
    assert judge.has_asked(PEER)
    assert judge.quitters([PEER], 100.1) == []


def test_what_has_ended_is_forgotten() -> None:
    traffic = Traffic()
    judge = TrafficJudge(traffic)
    traffic.of(PEER).num_bytes += 10**9
    judge.verdict(PEER, 0, 100.0)
    judge.forget([PEER])
    assert traffic.num_bytes(PEER) is None
    assert judge.verdict(PEER, 0, 100.0 + FIRST_REQUEST_S) == "fine"  # a new one, same port


def test_the_application_counts_both_ways_of_a_connection() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        visit = await ask(app, "POST", "/v1/chat/completions", CHAT)
        seen = app.traffic.num_bytes(PEER)
        assert seen is not None
        assert seen > len(visit.body) + 50

    play(scene())


def test_a_port_may_be_told_as_a_text() -> None:
    traffic = Traffic()
    traffic.of((PEER[0], str(PEER[1]))).num_bytes += 5
    assert traffic.num_bytes(PEER) == 5


def test_a_connection_without_an_address_is_counted_nowhere() -> None:
    traffic = Traffic()
    traffic.of(None).num_bytes += 1
    assert traffic.of(None).num_bytes == 0
