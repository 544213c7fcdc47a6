from __future__ import annotations

from hybridgen.scheduler.activity import INTERVAL_S, Activity, ActivityLog

IDLE = Activity(0, 0, 100, 1000, 0.0)


def test_a_line_says_levels_and_rates() -> None:
    log = ActivityLog(0.0)
    line = log.line(Activity(3, 4, 50, 1000, 0.255), 5.0)
    assert line == (
        "3 running, 4 waiting, 200.0 tokens/s out, 10.0 prompt tokens/s, KV cache 25.5% used"
    )


def test_it_is_due_every_interval() -> None:
    log = ActivityLog(10.0)
    assert not log.is_due(10.0 + INTERVAL_S - 0.1)
    assert log.is_due(10.0 + INTERVAL_S)
    log.line(IDLE, 10.0 + INTERVAL_S)
    assert not log.is_due(10.0 + INTERVAL_S + 0.1)


def test_a_resting_tree_is_silent_after_one_last_line() -> None:
    log = ActivityLog(0.0)
    assert log.line(IDLE, 5.0) is not None
    assert log.line(IDLE, 10.0) is None


def test_the_token_that_a_resting_tree_asks_itself_for_is_no_work() -> None:
    log = ActivityLog(0.0)
    log.line(IDLE, 5.0)
    assert log.line(IDLE._replace(num_prefilled=IDLE.num_prefilled + 1), 10.0) is None


def test_a_request_that_only_waits_is_work() -> None:
    log = ActivityLog(0.0)
    log.line(IDLE, 5.0)
    assert log.line(IDLE._replace(num_waiting=1), 10.0) is not None


def test_totals_that_began_anew_are_no_negative_rate() -> None:
    log = ActivityLog(0.0)
    log.line(IDLE, 5.0)
    line = log.line(IDLE._replace(num_sent=10), 10.0)
    assert line is not None
    assert "2.0 tokens/s out" in line
