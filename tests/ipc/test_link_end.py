"""Numbers on frames: what counts, what is dropped, what shows a loss."""

from __future__ import annotations

from typing import Any

import pytest

from hybridgen.ipc.link_end import Heard, LinkEnd, WorkerEnd
from hybridgen.messages import (
    UNASKED,
    AttachWorker,
    CheckLink,
    DrainWorker,
    LinkChecked,
    Stamped,
)

ORDER = DrainWorker()


def say(end: LinkEnd, *messages: Any) -> Stamped[Any]:
    frame = end.stamp(*(messages or (ORDER,)))
    end.sent()
    return frame


@pytest.fixture
def pair() -> tuple[LinkEnd, LinkEnd]:
    """A coscheduler of incarnation 2 and a worker of incarnation 5 that know each other."""
    here, there = LinkEnd(2), LinkEnd(5)
    here.take(say(there))
    there.take(say(here))
    here.take(say(there))
    return here, there


def test_frames_in_order_are_taken_and_nothing_is_lost(pair: tuple[LinkEnd, LinkEnd]) -> None:
    here, there = pair
    assert [there.take(say(here)) for _ in range(3)] == [[ORDER]] * 3
    assert not there.take_loss()
    assert not here.take_loss()
    assert (there.num_repeated, there.num_missed) == (0, 0)


def test_a_repeat_and_one_that_was_overtaken_are_dropped(pair: tuple[LinkEnd, LinkEnd]) -> None:
    here, there = pair
    first, second = say(here), say(here)
    assert there.take(second) == [ORDER]
    assert there.take(second) == []
    assert there.take(first) == []
    assert (there.num_repeated, there.num_missed) == (2, 1)


def test_a_gap_shows_on_both_sides_once(pair: tuple[LinkEnd, LinkEnd]) -> None:
    here, there = pair
    say(here)
    there.take(say(here))
    assert there.take_loss()
    assert not there.take_loss()
    here.take(say(there))
    assert here.take_loss()
    assert not here.take_loss()
    here.take(say(there))
    assert not here.take_loss()


def test_a_frame_that_could_not_be_sent_leaves_no_gap(pair: tuple[LinkEnd, LinkEnd]) -> None:
    here, there = pair
    here.stamp(ORDER)
    there.take(say(here))
    assert not there.take_loss()


def test_a_successor_counts_anew_and_its_predecessor_no_more(pair: tuple[LinkEnd, LinkEnd]) -> None:
    here, there = pair
    late = say(there)
    heir = LinkEnd(6)
    assert here.take(say(heir)) == [ORDER]
    assert here.take(late) == []
    first = say(here)
    assert (first.receiver, first.number) == (6, 1)
    assert there.take(first) == []  # it is meant for another
    assert heir.take(say(here)) == [ORDER]
    assert heir.num_missed == 1  # the first, which went to the dead


def test_a_new_coscheduler_takes_what_was_meant_for_nobody_yet() -> None:
    there, heir = LinkEnd(5), LinkEnd(3)
    say(there)
    assert heir.take(say(there)) == [ORDER]
    assert not heir.take_loss()


def heard_after_a_gap() -> tuple[LinkEnd, WorkerEnd]:
    here, there = LinkEnd(2), WorkerEnd(5)
    there.hear(say(here, AttachWorker(2)))
    here.take(say(there))
    assert there.hear(say(here)) == Heard([ORDER], None)
    say(here)
    assert there.hear(say(here)) == Heard([], LinkChecked())
    return here, there


def test_a_worker_follows_no_order_after_a_gap_until_it_is_asked_who_it_is() -> None:
    here, there = heard_after_a_gap()
    assert there.hear(say(here)) == Heard([], None)
    ask = AttachWorker(2, 1)
    assert there.hear(say(here, ask)) == Heard([ask], None)
    assert there.hear(say(here)) == Heard([ORDER], None)


def test_a_worker_answers_a_check_also_when_it_follows_no_orders() -> None:
    here, there = heard_after_a_gap()
    assert there.hear(say(here, CheckLink())) == Heard([], LinkChecked())


def test_a_gap_before_the_question_who_it_is_matters_to_nobody() -> None:
    here, there = LinkEnd(2), WorkerEnd(5)
    there.hear(say(here, AttachWorker(2)))
    say(here)
    ask = AttachWorker(2, 1)
    assert there.hear(say(here, ask)) == Heard([ask], None)
    assert there.hear(say(here)) == Heard([ORDER], None)


def test_a_worker_whose_predecessor_is_asked_introduces_itself() -> None:
    here, dead, there = LinkEnd(2), WorkerEnd(5), WorkerEnd(6)
    here.take(say(dead))
    assert there.hear(say(here, AttachWorker(2))) == Heard([UNASKED], None)


def test_what_is_said_at_once_is_taken_or_lost_as_one(pair: tuple[LinkEnd, LinkEnd]) -> None:
    here, there = pair
    both = (ORDER, CheckLink())
    assert there.take(say(here, *both)) == [*both]
    say(here, *both)
    there.take(say(here))
    assert there.num_missed == 1


def test_in_one_frame_only_orders_behind_the_question_are_followed_after_a_gap() -> None:
    here, there = heard_after_a_gap()
    ask, then = AttachWorker(2, 1), DrainWorker()
    assert there.hear(say(here, ORDER, ask, then, CheckLink())) == Heard([ask, then], LinkChecked())
