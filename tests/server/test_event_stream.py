from __future__ import annotations

import pytest

from hybridgen.server import event_stream
from hybridgen.server.event_stream import CROWDED_UNREAD_S, ReadingTime
from tests.support.asgi_driver import Visit
from tests.support.front_door import CHAT, make_app, play
from tests.support.scripted_backend import ScriptedBackend, chunks


@pytest.mark.parametrize("has_queue", [False, True])
def test_a_frame_may_be_unread_for_a_while_whoever_waits(has_queue: bool) -> None:
    time = ReadingTime(30.0, lambda: has_queue)
    assert time.exceeded_s(CROWDED_UNREAD_S - 0.01, lambda: True) is None


def test_the_whole_limit_is_for_those_whose_place_nobody_wants() -> None:
    time = ReadingTime(30.0, lambda: False)
    assert time.exceeded_s(29.9, lambda: True) is None
    assert time.exceeded_s(30.0, lambda: True) == 30.0


def test_while_others_wait_the_limit_is_short() -> None:
    time = ReadingTime(30.0, lambda: True)
    assert time.exceeded_s(CROWDED_UNREAD_S, lambda: True) == CROWDED_UNREAD_S
    assert time.exceeded_s(30.0, lambda: True) == 30.0


def test_a_shorter_limit_holds_in_any_case() -> None:
    assert ReadingTime(0.1, lambda: True).exceeded_s(0.1, lambda: False) == 0.1


def test_who_has_no_place_to_give_has_the_whole_limit() -> None:
    assert ReadingTime(30.0, lambda: True).exceeded_s(29.9, lambda: False) is None


def test_it_is_looked_often_enough_but_does_not_spin() -> None:
    assert ReadingTime(30.0, lambda: True).pause_s < CROWDED_UNREAD_S / 2
    assert ReadingTime(0.0, lambda: True).pause_s > 0


def test_a_client_that_does_not_read_makes_room_for_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "CROWDED_UNREAD_S", 0.01)

    async def scene() -> None:
        backend = ScriptedBackend(chunks(*["x"] * 1000))
        app = make_app(backend, has_queue=lambda: True)
        visit = Visit(app, "POST", "/v1/chat/completions", {**CHAT, "stream": True})
        visit.stop_reading()
        await visit.done()
        assert not visit.is_complete
        assert backend.streams[0].num_closed == 1
        assert app.counters.disconnects == 1

    play(scene())
