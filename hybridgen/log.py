"""Logging of every process: one line a record to standard error, as text or as JSON.

``12:00:00.123 I sampler-0 message``. Control characters in a message are escaped, so that text
from a client can neither forge a line nor move the terminal's cursor.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
#: What a caller may add to a record (``extra=…``); JSON lines carry it as keys of their own.
EXTRA_KEYS: Final = ("request_id", "trace_id", "span_id")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LineFormatter(logging.Formatter):
    """One escaped line per record; only a traceback adds more, each of them indented."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        """The line for ``record``, without its end."""
        clock = self.formatTime(record, "%H:%M:%S")
        message = escape(record.getMessage())
        line = (
            f"{clock}.{int(record.msecs):03d} {record.levelname[0]} {self._process_name} {message}"
        )
        if record.exc_info:
            traceback = self.formatException(record.exc_info).split("\n")
            line = "\n    ".join([line, *map(escape, traceback)])
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per record: ts, level, role, process, pid, message, and what is known more.

    ``ts`` is RFC 3339 in UTC with microseconds.
    """

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process = {
            "role": process_name.rpartition("-")[0] or process_name,
            "process": process_name,
            "pid": os.getpid(),
        }

    def format(self, record: logging.LogRecord) -> str:
        """The object for ``record``, without the end of its line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "ts": f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z",
            "level": record.levelname.lower(),
            **self._process,
            "message": _encodable(record.getMessage()),
        }
        for key in EXTRA_KEYS:
            value = getattr(record, key, None)
            if value:
                fields[key] = _encodable(str(value))
        if record.exc_info:
            fields["exception"] = _encodable(self.formatException(record.exc_info))
        return _CONTROL.sub(_json_escape, msgspec.json.encode(fields).decode())


class VolumeLimit(logging.Filter):
    """Lets at most so many records a second through, and says how many it has left out.

    Args:
        max_per_s: records within one second.
        clock: seconds that never jump.
    """

    def __init__(self, max_per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._max_per_s = max_per_s
        self._clock = clock
        self._second = -1
        self._num_passed = 0
        self._num_dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is written."""
        second = int(self._clock())
        if second != self._second:
            if self._num_dropped:
                record.msg = f"{record.msg} ({self._num_dropped} lines left out before)"
            self._second, self._num_passed, self._num_dropped = second, 0, 0
        self._num_passed += 1
        if self._num_passed > self._max_per_s:
            self._num_dropped += 1
            return False
        return True


def escape(text: str) -> str:
    """``text`` with every control character written as an escape sequence."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def setup(process_name: str, level: str, log_format: str = "text") -> None:
    """Send the log of this process to standard error.

    Args:
        process_name: ``role-index``.
        level: a key of ``LEVELS``.
        log_format: ``text`` or ``json``.
    """
    formatter = JsonFormatter if log_format == "json" else LineFormatter
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(process_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])


def _json_escape(control: re.Match[str]) -> str:
    return f"\\u{ord(control[0]):04x}"


def _encodable(text: str) -> str:
    """``text`` with lone surrogates, which no UTF-8 can carry, as escapes."""
    return text.encode(errors="backslashreplace").decode()
