"""When a process is kept waiting, and when not; that it works is seen in test_supervisor."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterator

import pytest

from hybridgen.ipc.board import Role
from hybridgen.launch.plan import WorkerPlan
from hybridgen.launch.standby import RETRY_S, Standby
from hybridgen.messages import StandBy
from tests.launch.test_plan import plan_of
from tests.support.eventually import eventually
from tests.support.fake_clock import FakeClock
from tests.support.stand_in_processes import child_environment
from tests.workers.orphanage import bare_order, bare_spec

PLAN = next(worker for worker in plan_of().workers if worker.role is Role.DETOKENIZER)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def standby(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    monkeypatch.setattr(os, "environ", child_environment())
    yield from kept(bare_order("tests.support.stand_in_worker:prepare"), clock)


def kept(order: StandBy, clock: FakeClock) -> Iterator[Standby]:
    standby = Standby(PLAN, order, clock)
    yield standby
    standby.dismiss()


def has_ended(standby: Standby) -> bool:
    return bool(select.select([standby.child], [], [], 0.0)[0])


def kill(standby: Standby) -> None:
    assert standby.child is not None
    standby.child.signal(signal.SIGKILL)
    eventually(lambda: has_ended(standby), 10.0)


def test_only_one_waits(standby: Standby) -> None:
    assert standby.child is None
    assert standby.keep([])
    assert standby.child is not None
    assert not standby.keep([])


def test_one_that_ended_is_followed_by_another_only_later(
    standby: Standby, clock: FakeClock
) -> None:
    standby.keep([])
    kill(standby)
    standby.bury()
    assert standby.child is None
    assert standby.due_s == clock() + RETRY_S
    assert not standby.keep([])
    clock.advance(RETRY_S)
    assert standby.keep([])
    assert standby.due_s is None


def test_why_one_cannot_wait_is_told(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "environ", child_environment())
    for standby in kept(bare_order("tests.workers.orphanage:refuse_ahead"), clock):
        standby.keep([])
        eventually(lambda: has_ended(standby), 10.0)  # noqa: B023  # called in this turn
        standby.bury()
    (record,) = caplog.records
    assert "the standby detokenizer" in record.message
    assert "exited with code 65: the file is cut off" in record.message


def test_one_that_takes_a_place_is_the_child_there(standby: Standby) -> None:
    standby.keep([])
    waiting = standby.child
    plan = WorkerPlan(Role.DETOKENIZER, 3, 9, PLAN.entry)
    child = standby.employ(bare_spec(PLAN.entry), plan)
    assert child is waiting is not None
    assert (child.plan, child.incarnation, standby.child) == (plan, 1, None)
    assert child.has_waited
    child.signal(signal.SIGKILL)
    child.reap()


def test_one_that_died_unseen_is_not_employed(standby: Standby) -> None:
    standby.keep([])
    kill(standby)
    assert standby.employ(bare_spec(PLAN.entry), PLAN) is None
    assert standby.child is None
    assert standby.keep([])


def test_one_that_cannot_be_watched_is_given_up(
    standby: Standby, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert not standby.keep([])
    assert standby.child is None
    assert standby.due_s == clock() + RETRY_S


def test_one_that_is_dismissed_is_gone_and_another_may_follow_at_once(standby: Standby) -> None:
    standby.keep([])
    assert standby.child is not None
    watched = os.dup(standby.child.fileno())
    standby.dismiss()
    standby.dismiss()
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(watched, signal.SIGKILL)
    os.close(watched)
    assert standby.keep([])


def test_it_ends_with_its_supervisor(standby: Standby) -> None:
    standby.keep([])
    assert standby.child is not None
    standby.child.control.close()
    eventually(lambda: has_ended(standby), 10.0)
