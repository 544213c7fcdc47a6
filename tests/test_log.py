from __future__ import annotations

import logging
import sys

import pytest

from hybridgen.log import LineFormatter, escape


def record(message: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("x", level, "x.py", 1, message, (), None)


def test_a_line_names_time_level_process_and_message() -> None:
    words = LineFormatter("sampler-0").format(record("hello there", logging.WARNING)).split(" ", 3)
    assert len(words[0]) == len("12:00:00.123")
    assert words[1:] == ["W", "sampler-0", "hello there"]


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x1b[31mb", "a\x00b", "a\u2028b", "a\x85b"])
def test_a_message_cannot_forge_a_line_or_move_the_cursor(text: str) -> None:
    line = LineFormatter("gpu-0").format(record(text))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_ordinary_text_is_left_alone() -> None:
    assert escape("Grüße, 世界 🌍") == "Grüße, 世界 🌍"


def test_a_traceback_follows_its_line() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        failed = record("failed")
        failed.exc_info = sys.exc_info()
    lines = LineFormatter("gpu-0").format(failed).splitlines()
    assert lines[0].endswith("failed")
    assert lines[-1] == "ValueError: why"
