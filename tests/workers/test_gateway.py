"""The gateway's end, and what it makes of its configuration; the rest needs a tree."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hybridgen.config import ModelSection
from hybridgen.workers.gateway import HURRIED_DRAIN_S, drain, has_queue, model_names

LONG_S = 30.0


class FakeApp:
    """Has one request, which ends when told to."""

    def __init__(self) -> None:
        self.counters = SimpleNamespace(open=1)
        self.is_draining = self.is_cut = False
        self.is_idle = asyncio.Event()

    def start_draining(self) -> None:
        self.is_draining = True

    async def wait_idle(self, timeout_s: float) -> int:
        await asyncio.wait({asyncio.create_task(self.is_idle.wait())}, timeout=timeout_s)
        return self.counters.open

    def cut_open(self) -> None:
        self.is_cut = True

    def finish(self) -> None:
        self.counters.open = 0
        self.is_idle.set()


def drained(act: Any, timeout_s: float = LONG_S) -> tuple[FakeApp, float]:
    """The application after ``drain``, with ``act(app, orders)`` done meanwhile; seconds taken."""

    async def main() -> FakeApp:
        app: Any = FakeApp()
        orders: Any = SimpleNamespace(is_hurried=asyncio.Event())
        asyncio.get_running_loop().call_soon(act, app, orders)
        await drain(app, orders, timeout_s)
        return app

    started_s = time.monotonic()
    app = asyncio.run(main())
    return app, time.monotonic() - started_s


def test_a_drain_ends_with_the_last_answer() -> None:
    app, took_s = drained(lambda app, _orders: app.finish())
    assert app.is_draining
    assert not app.is_cut
    assert took_s < HURRIED_DRAIN_S


def test_a_hurry_leaves_answers_a_moment_and_cuts_the_rest() -> None:
    app, took_s = drained(lambda _app, orders: orders.is_hurried.set())
    assert app.is_cut
    assert HURRIED_DRAIN_S <= took_s < LONG_S / 10


def test_what_is_left_at_the_limit_is_cut() -> None:
    app, took_s = drained(lambda _app, _orders: None, timeout_s=0.05)
    assert app.is_cut
    assert took_s < LONG_S / 10


@pytest.mark.parametrize(
    ("model", "served", "names"),
    [
        ("demo", "SmolLM2", ("SmolLM2", "demo")),
        ("demo", "demo", ("demo",)),
        ("/models/x.gguf", "x", ("x",)),
    ],
)
def test_demo_is_also_a_name(model: str, served: str, names: tuple[str, ...]) -> None:
    assert model_names(ModelSection(model=model, served_model_name=served)) == names


@pytest.mark.parametrize(
    ("waiting", "encoding", "is_queue"), [(0, 0, False), (2, 2, False), (3, 2, True)]
)
def test_who_is_only_being_encoded_does_not_queue(
    waiting: int, encoding: int, is_queue: bool
) -> None:
    seen: Any = SimpleNamespace(counters={"waiting": waiting, "encoding": encoding})
    assert has_queue(seen) is is_queue
