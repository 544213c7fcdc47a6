"""When a process is kept waiting, and when not; that it works is seen in test_supervisor."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterator

import pytest

from hybridgen.ipc.board import Role
from hybridgen.launch.standby import RETRY_S, Standby
from tests.launch.test_plan import plan_of
from tests.support.eventually import eventually
from tests.support.fake_clock import FakeClock
from tests.support.stand_in_processes import child_environment
from tests.workers.orphanage import bare_spec


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def standby(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    monkeypatch.setattr(os, "environ", child_environment())
    standby = Standby("tests.support.stand_in_worker:run", "0123456789ab", clock)
    yield standby
    standby.dismiss()


def test_only_one_waits(standby: Standby) -> None:
    assert not standby.is_there
    assert standby.keep([])
    assert standby.is_there
    assert not standby.keep([])


def test_one_that_ended_is_followed_by_another_only_later(
    standby: Standby, clock: FakeClock
) -> None:
    standby.keep([])
    signal.pidfd_send_signal(standby.fileno(), signal.SIGKILL)
    eventually(lambda: select.select([standby], [], [], 0.0)[0], 10.0)
    standby.bury()
    assert not standby.is_there
    assert standby.due_s == clock() + RETRY_S
    assert not standby.keep([])
    clock.advance(RETRY_S)
    assert standby.keep([])
    assert standby.due_s is None


@pytest.mark.timeout(10)
def test_one_that_lives_is_not_buried(standby: Standby) -> None:
    standby.keep([])
    standby.bury()
    assert standby.is_there


def test_one_that_cannot_be_watched_is_given_up(
    standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    standby.keep([])
    monkeypatch.setattr(os, "pidfd_open", refuse)
    plan = next(worker for worker in plan_of().workers if worker.role is Role.SAMPLER)
    assert standby.employ(bare_spec(plan.entry), plan) is None
    assert not standby.is_there


def test_one_that_is_dismissed_is_gone_and_another_may_follow_at_once(standby: Standby) -> None:
    standby.keep([])
    watched = os.dup(standby.fileno())
    standby.dismiss()
    standby.dismiss()
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(watched, signal.SIGKILL)
    os.close(watched)
    assert standby.keep([])


def test_it_ends_with_its_supervisor(standby: Standby) -> None:
    standby.keep([])
    assert standby._control is not None
    standby._control.close()
    eventually(lambda: select.select([standby], [], [], 0.0)[0], 10.0)
