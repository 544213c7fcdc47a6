"""A client's trace context goes with its request, and comes back."""

from __future__ import annotations

import pytest

from tests.support.asgi_driver import Visit
from tests.support.front_door import CHAT, make_app, play
from tests.support.scripted_backend import ScriptedBackend

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PATH = "/v1/chat/completions"


@pytest.mark.parametrize("is_stream", [False, True])
def test_it_reaches_the_tree_with_every_choice_and_returns_to_the_client(is_stream: bool) -> None:
    backend = ScriptedBackend()

    async def scene() -> None:
        body = {**CHAT, "n": 2, "stream": is_stream}
        headers = {"traceparent": GIVEN}
        visit = await Visit(make_app(backend), "POST", PATH, body, headers).done()
        assert visit.status == 200
        assert visit.headers["traceparent"] == GIVEN

    play(scene())
    assert backend.traceparents == [GIVEN, GIVEN]


def test_an_error_carries_it_too() -> None:
    async def scene() -> None:
        app = make_app(ScriptedBackend())
        visit = await Visit(app, "POST", PATH, {}, {"traceparent": GIVEN}).done()
        assert visit.status == 400
        assert visit.headers["traceparent"] == GIVEN

    play(scene())


@pytest.mark.parametrize("value", [None, "", "nonsense", GIVEN + "\r\nx: y", "é" * 55])
def test_none_or_a_broken_one_changes_nothing(value: str | None) -> None:
    backend = ScriptedBackend()

    async def scene() -> None:
        visit = await Visit(make_app(backend), "POST", PATH, CHAT, {"traceparent": value}).done()
        assert visit.status == 200
        assert "traceparent" not in visit.headers

    play(scene())
    assert backend.traceparents == [""]
