from __future__ import annotations

import json
import logging
import os
import sys

import pytest

from hybridgen.log import JsonFormatter, LineFormatter, VolumeLimit, escape
from tests.support.fake_clock import FakeClock

FORGERIES = [
    *("a\nb", "a\rb", "a\x1b[31mb", "a\x00b", "a\u2028b", "a\x85b", "a\x7fb"),
    '"}\n{"level":"error"',
]


def record(message: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("x", level, "x.py", 1, message, (), None)


def failed_record(text: str) -> logging.LogRecord:
    failed = record("failed")
    try:
        raise ValueError(text)
    except ValueError:
        failed.exc_info = sys.exc_info()
    return failed


def test_a_line_names_time_level_process_and_message() -> None:
    words = LineFormatter("sampler-0").format(record("hello there", logging.WARNING)).split(" ", 3)
    assert len(words[0]) == len("12:00:00.123")
    assert words[1:] == ["W", "sampler-0", "hello there"]


@pytest.mark.parametrize("text", FORGERIES)
def test_a_message_cannot_forge_a_line_or_move_the_cursor(text: str) -> None:
    line = LineFormatter("gpu-0").format(record(text))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_ordinary_text_is_left_alone() -> None:
    assert escape("Grüße, 世界 🌍") == "Grüße, 世界 🌍"


def test_a_traceback_follows_its_line() -> None:
    lines = LineFormatter("gpu-0").format(failed_record("why")).splitlines()
    assert lines[0].endswith("failed")
    assert lines[-1] == "    ValueError: why"


def test_the_text_of_an_exception_cannot_forge_a_line() -> None:
    failed = failed_record("x\n12:00:00.123 E gpu-0 all is lost\x1b[2J")
    lines = LineFormatter("gpu-0").format(failed).splitlines()
    assert all(line.startswith("    ") and line.isprintable() for line in lines[1:])


def test_json_has_one_object_a_line_that_says_who_when_and_what() -> None:
    moment = record("hello", logging.WARNING)
    moment.created = 1_800_000_000.25
    assert json.loads(JsonFormatter("sampler-3").format(moment)) == {
        "ts": "2027-01-15T08:00:00.250000Z",
        "level": "warning",
        "role": "sampler",
        "process": "sampler-3",
        "pid": os.getpid(),
        "message": "hello",
    }


@pytest.mark.parametrize("text", [*FORGERIES, "half \ud800 a pair", "Grüße, 世界 🌍"])
def test_json_carries_any_text_in_one_line(text: str) -> None:
    line = JsonFormatter("gpu-0").format(record(text))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    shown = text.encode(errors="backslashreplace").decode()
    assert json.loads(line)["message"] == shown


def test_json_names_request_and_trace_where_they_are_known() -> None:
    known = logging.makeLogRecord({"msg": "done", "request_id": "ab", "trace_id": "cd"})
    fields = json.loads(JsonFormatter("coscheduler-0").format(known))
    assert (fields["request_id"], fields["trace_id"]) == ("ab", "cd")
    assert "span_id" not in fields


def test_json_has_the_traceback_inside_its_object() -> None:
    line = JsonFormatter("gpu-0").format(failed_record("why"))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["exception"].endswith("ValueError: why")


def test_a_limit_lets_so_many_lines_a_second_through_and_counts_the_rest() -> None:
    clock = FakeClock()
    limit = VolumeLimit(3, clock)
    assert [limit.filter(record("x")) for _ in range(5)] == [True] * 3 + [False] * 2
    clock.advance(1.0)
    later = record("next")
    assert limit.filter(later)
    assert later.getMessage() == "next (2 lines left out before)"
    fresh = record("then")
    assert limit.filter(fresh)
    assert fresh.getMessage() == "then"
