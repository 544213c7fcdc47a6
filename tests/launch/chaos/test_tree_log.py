from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hybridgen.launch.chaos.tree_log import TreeLog
from hybridgen.log import JsonFormatter


@pytest.fixture
def log(tmp_path: Path) -> TreeLog:
    (tmp_path / "log").touch()
    return TreeLog(tmp_path / "log")


def write(log: TreeLog, process: str, message: str, created_s: float = 100.25) -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, message, None, None)
    record.created = created_s
    with log._path.open("a") as file:
        print(JsonFormatter(process).format(record), file=file)


def test_a_death_and_a_return_are_read(log: TreeLog) -> None:
    write(log, "supervisor-0", "gpu-0 (pid 7, incarnation 2) killed by SIGBUS; restart in 0.1 s")
    write(log, "supervisor-0", "gpu-0 is back (incarnation 3)", 101.5)
    log.read()
    [death], [back] = log.deaths, log.returns
    assert (death.name, death.pid, death.incarnation, death.how) == (
        *("gpu-0", 7, 2),
        "killed by SIGBUS",
    )
    assert (death.at_s, back.at_s) == (100.25, 101.5)
    assert (back.name, back.incarnation) == ("gpu-0", 3)


def test_a_fault_on_purpose_is_read_from_the_process_that_has_it(log: TreeLog) -> None:
    write(log, "gpu-0", "fault at ring.commit: kill")
    log.read()
    [fault] = log.faults
    assert (fault.at_s, fault.name) == (100.25, "gpu-0")


def test_what_the_coscheduler_has_noted_is_read(log: TreeLog) -> None:
    write(log, "coscheduler-0", "noted that sampler-1 (incarnation 4) died", 100.5)
    log.read()
    [note] = log.notes
    assert (note.at_s, note.name, note.incarnation) == (100.5, "sampler-1", 4)


def test_reading_goes_on_where_it_stopped(log: TreeLog) -> None:
    for incarnation in (2, 3):
        write(log, "supervisor-0", f"gpu-0 is back (incarnation {incarnation})")
        log.read()
    assert [back.incarnation for back in log.returns] == [2, 3]


def test_half_a_line_waits_for_its_end(log: TreeLog) -> None:
    write(log, "supervisor-0", "gpu-0 is back (incarnation 2)")
    whole = log._path.read_bytes()
    log._path.write_bytes(whole[:20])
    log.read()
    assert log.returns == []
    log._path.write_bytes(whole)
    log.read()
    assert len(log.returns) == 1


def test_what_others_say_is_no_death(log: TreeLog) -> None:
    write(log, "coscheduler-0", "gpu-0 (pid 7, incarnation 2) killed by SIGBUS; restart")
    with log._path.open("a") as file:
        print("Fatal Python error: Aborted", file=file)
    log.read()
    assert log.deaths == []
    assert log.others == ["Fatal Python error: Aborted"]
