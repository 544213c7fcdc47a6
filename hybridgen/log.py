"""Logging of every process: one line to standard error, named after the process.

``12:00:00.123 I sampler-0 message``. Control characters in a message are escaped, so that text
from a client can neither forge a line nor move the terminal's cursor.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Final

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LineFormatter(logging.Formatter):
    """One escaped line per record; only a traceback may add more."""

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
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def escape(text: str) -> str:
    """``text`` with every control character written as an escape sequence."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def setup(process_name: str, level: str) -> None:
    """Send the log of this process to standard error; ``level`` is a key of ``LEVELS``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(process_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
