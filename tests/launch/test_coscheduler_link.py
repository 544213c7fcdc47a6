"""What the supervisor has to say is said until it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hybridgen.ipc.channel import SendResult
from hybridgen.ipc.worker_links import WorkerLinks
from hybridgen.launch.coscheduler_link import CoschedulerLink
from hybridgen.messages import DeathNoted, DrainTree, TreeDrained, WorkerDied
from tests.support.eventually import eventually
from tests.support.fake_clock import FakeClock

DEATH = WorkerDied("sampler", 1, 3, "killed", False)
OTHER = WorkerDied("gpu", 0, 1, "killed", False)


class Stage:
    """A link, and the coscheduler at its other end."""

    def __init__(self, endpoint: str) -> None:
        self.clock = FakeClock()
        self.endpoint = endpoint
        self.link = CoschedulerLink(endpoint, self.clock)
        self.coscheduler = WorkerLinks(endpoint, 1, ["supervisor"])
        self.heard: list[Any] = []

    def hear(self, count: int) -> list[Any]:
        def has_heard() -> bool:
            while (arrival := self.coscheduler.receive()) is not None:
                self.heard.append(arrival.fact)
            return len(self.heard) >= count

        eventually(has_heard, 5.0)
        return self.heard

    def is_answered(self) -> bool:
        """Nothing waits for an answer any more."""
        self.link.is_drained()
        self.link.flush()
        return self.link.retry_at_s is None

    def replace_coscheduler(self) -> None:
        """The next one, when the link's line to it stands: a line that breaks may lose a frame."""
        self.coscheduler.close()
        self.coscheduler = WorkerLinks(self.endpoint, 2, ["supervisor"])
        greeting = DeathNoted("sampler", 9, 1)
        eventually(lambda: self.coscheduler.send("supervisor", greeting) is SendResult.SENT, 5.0)

    def answer(self, message: DeathNoted | TreeDrained) -> None:
        self.coscheduler.send("supervisor", message)

    def close(self) -> None:
        self.link.close()
        self.coscheduler.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    # Short, as a socket address holds 107 bytes.
    with TemporaryDirectory(prefix="hg-") as folder, closing(Stage(f"ipc://{folder}/w")) as stage:
        yield stage


def test_a_death_is_repeated_until_it_is_noted(stage: Stage) -> None:
    stage.link.send(DEATH)
    assert stage.hear(1) == [DEATH]
    stage.clock.advance(0.9)
    stage.link.flush()
    stage.clock.advance(0.2)
    stage.link.flush()
    assert stage.hear(2) == [DEATH, DEATH]
    stage.answer(DeathNoted("sampler", 1, 3))
    eventually(stage.is_answered, 5.0)
    stage.clock.advance(5.0)
    stage.link.flush()
    stage.link.send(OTHER)
    assert stage.hear(3)[2:] == [OTHER]


def test_a_death_is_told_to_the_next_coscheduler_too_when_the_first_did_not_note_it(
    stage: Stage,
) -> None:
    stage.link.send(DEATH)
    stage.hear(1)
    stage.replace_coscheduler()
    stage.clock.advance(1.1)
    stage.link.flush()
    assert stage.hear(2) == [DEATH, DEATH]


def test_a_coscheduler_that_follows_one_that_answered_is_told_at_once(stage: Stage) -> None:
    stage.link.send(DEATH)
    stage.hear(1)
    stage.answer(DeathNoted("sampler", 1, 3))
    eventually(stage.is_answered, 5.0)
    stage.replace_coscheduler()
    stage.link.expect(2)
    stage.link.send(DrainTree(1.0))
    assert stage.hear(2)[1:] == [DrainTree(1.0)]


def test_the_drain_order_is_repeated_until_the_tree_is_drained(stage: Stage) -> None:
    stage.link.send(DrainTree(10.0))
    stage.link.send(DrainTree(0.0))
    stage.clock.advance(1.1)
    stage.link.flush()
    assert stage.hear(3) == [DrainTree(10.0), DrainTree(0.0), DrainTree(0.0)]
    stage.answer(TreeDrained(0))
    eventually(stage.link.is_drained, 5.0)
    stage.link.flush()
    assert stage.link.retry_at_s is None
