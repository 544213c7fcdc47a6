"""When the fleet starts what is due; what a death means is seen in test_supervisor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridgen.ipc.board import Role
from hybridgen.launch import standby
from hybridgen.launch.fleet import Fleet
from tests.launch.test_plan import plan_of
from tests.support.fake_clock import FakeClock


def test_a_standby_that_ended_is_followed_by_another_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, nothing = FakeClock(), SimpleNamespace(fds={})
    child = SimpleNamespace(signal=lambda _signum: None, reap=lambda: "")
    monkeypatch.setattr(standby, "spawn_with", lambda *_arguments: child)
    context: Any = {"segments": nothing, "placement": nothing, "groups": None, "listener": None}
    fleet = Fleet(plan_of(), instance="cafe", runtime_dir="", clock=clock, **context)
    fleet.standbys[Role.SAMPLER].due_s = clock() + standby.RETRY_S
    assert fleet.next_due_s() == clock() + standby.RETRY_S
    fleet.start_due()
    assert not fleet.has_standby(Role.SAMPLER)
    clock.advance(standby.RETRY_S)
    fleet.start_due()
    assert fleet.has_standby(Role.SAMPLER)
    assert fleet.next_due_s() is None
    fleet.close()
