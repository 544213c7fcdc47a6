"""The screen, driven by keys without a terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from textual.pilot import Pilot

from hybridgen.errors import PeerGone
from hybridgen.ipc.board import Role
from hybridgen.launch.top.rows import ORDERS
from hybridgen.launch.top.screen import TopScreen
from hybridgen.messages import ProcessList
from tests.launch.top.trees import busy_tree, process, tree

URI = "hybridgen:///run/x"
SIZE = (160, 45)
WAIT_S = 5.0


class Tree:
    """What the screen asks; a second passes and a hundred tokens are made at every look."""

    def __init__(self) -> None:
        self.num_looks = 0
        self.make: Callable[[int], ProcessList] = lambda n: busy_tree(float(n), 100 * n)

    def look(self) -> ProcessList:
        self.num_looks += 1
        return self.make(self.num_looks)


Scene = Callable[[Tree, "Pilot[None]"], Coroutine[Any, Any, None]]


def play(scene: Scene) -> None:
    async def main() -> None:
        asked = Tree()
        screen = TopScreen(asked.look, URI, 0.02)
        async with screen.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "tokens/s" in shown(pilot))
            await scene(asked, pilot)

    asyncio.run(main())


async def until(pilot: Pilot[None], predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not predicate():
            await pilot.pause(0.01)


def shown(pilot: Pilot[None]) -> str:
    """The text on the screen."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def names(pilot: Pilot[None]) -> list[str]:
    known = [f"{role.label}-0" for role in Role]
    lines = [line.split() for line in shown(pilot).splitlines()]
    return [word for line in lines for word in line[:2] if word in known]


def test_the_whole_tree_is_shown_with_its_figures() -> None:
    async def scene(_asked: Tree, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "100 tokens/s" in shown(pilot))
        text = shown(pilot)
        for words in ("running 4", "waiting 7", "over HTTP 3", "step 4.00 ms", "logits 1/2"):
            assert words in text
        assert "first token 4.0 ms / 5.0 ms" in text
        assert "mock on cpu, ready" in text
        assert names(pilot) == [f"{role.label}-0" for role in Role]
        assert "└─ gateway-0" in text

    play(scene)


def test_s_goes_through_the_orders_and_keeps_the_cursor_on_its_process() -> None:
    async def scene(_asked: Tree, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "d")
        await until(pilot, lambda: "pid             102" in shown(pilot))
        await pilot.press("s")
        await until(pilot, lambda: names(pilot)[0] == "gpu-0")
        assert f"sorted by {ORDERS[1]}" in shown(pilot)
        assert "pid             102" in shown(pilot)
        await pilot.press(*"s" * (len(ORDERS) - 1))
        await until(pilot, lambda: names(pilot)[0] == "supervisor-0")

    play(scene)


@pytest.mark.parametrize("key", ["p", "space"])
def test_a_pause_holds_the_picture(key: str) -> None:
    async def scene(asked: Tree, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await until(pilot, lambda: "paused" in shown(pilot))
        await pilot.pause(0.05)  # a look that was under way
        before, picture = asked.num_looks, shown(pilot)
        await pilot.pause(0.1)
        assert (asked.num_looks, shown(pilot)) == (before, picture)
        await pilot.press(key)
        await until(pilot, lambda: asked.num_looks > before)
        await until(pilot, lambda: "paused" not in shown(pilot))

    play(scene)


def test_a_replaced_process_is_shown_and_inspected_like_its_predecessor() -> None:
    async def scene(asked: Tree, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: "102, incarnation 1" in shown(pilot))
        exit_text = "killed by SIGKILL"
        gone = {"pid": 0, "state": "waiting", "cpus": [], "progress_age_s": None}
        asked.make = lambda n: busy_tree(float(n), 100, last_exit=exit_text, **gone)
        await until(pilot, lambda: "waiting" in shown(pilot).partition("gpu-0")[2])
        back = {"pid": 7777, "incarnation": 2, "restarts": 1, "last_exit": exit_text}
        asked.make = lambda n: busy_tree(float(n), n, **back)
        await until(pilot, lambda: "7777, incarnation 2" in shown(pilot))
        assert shown(pilot).count(exit_text) == 2  # in its row, and among the details
        await pilot.press("escape")
        await until(pilot, lambda: "7777, incarnation 2" not in shown(pilot))

    play(scene)


def test_processes_may_come_and_go() -> None:
    async def scene(asked: Tree, pilot: Pilot[None]) -> None:
        more = process(Role.SAMPLER, pid=999, name="sampler-1", index=1)
        asked.make = lambda n: tree(float(n), more)
        await until(pilot, lambda: "sampler-1" in shown(pilot))
        asked.make = lambda n: tree(float(n))
        await until(pilot, lambda: "sampler-1" not in shown(pilot))

    play(scene)


def test_a_tree_that_does_not_answer_is_said_and_asked_again() -> None:
    async def scene(asked: Tree, pilot: Pilot[None]) -> None:
        def gone(_: int) -> ProcessList:
            raise PeerGone("nobody is there")

        answering, asked.make = asked.make, gone
        await until(pilot, lambda: "nobody is there" in shown(pilot))
        assert "gpu-0" in shown(pilot)
        asked.make = answering
        await until(pilot, lambda: "nobody is there" not in shown(pilot))

    play(scene)


def test_a_slow_tree_is_asked_one_question_at_a_time() -> None:
    async def scene(asked: Tree, pilot: Pilot[None]) -> None:
        go_on = threading.Event()

        def slow(n: int) -> ProcessList:
            go_on.wait(WAIT_S)
            return busy_tree(float(n), n)

        before, asked.make = asked.num_looks, slow
        await pilot.pause(0.2)
        assert asked.num_looks <= before + 2
        go_on.set()
        await until(pilot, lambda: asked.num_looks > before + 2)

    play(scene)


def test_q_quits() -> None:
    async def main() -> None:
        screen = TopScreen(Tree().look, URI, 0.02)
        async with screen.run_test(size=SIZE) as pilot:
            await pilot.press("q")
        assert screen.return_code == 0

    asyncio.run(main())
