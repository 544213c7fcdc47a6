"""What is written down about a process that hangs, before it is ended.

Reports are files, bounded in size and in number; the oldest make room.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_THREADS = 64
#: More reports than this are not kept.
MAX_INCIDENTS = 20
_SUFFIX = ".incident.txt"


def default_dir() -> Path:
    """Where reports go when nothing else was asked for."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "hybridgen" / "incidents"


class IncidentFolder:
    """Reports of all trees of this user, newest kept.

    Args:
        path: made, mode 0700, when the first report is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path | None:
        """Keep a report; None, and a word in the log, where that cannot be."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = self.path / f"{stamp}-{name}{_SUFFIX}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as report:
                report.write(text)
            self._make_room()
        except OSError as error:
            logger.warning("no report can be kept in %s: %s", self.path, error)
            return None
        return path

    def _make_room(self) -> None:
        reports = sorted(self.path.glob(f"*{_SUFFIX}"))  # their names begin with the time
        for report in reports[:-MAX_INCIDENTS]:
            report.unlink(missing_ok=True)


def native_threads(pid: int) -> str:
    """A line for each thread: what it is called, its state, where in the kernel it sleeps.

    The kernel's stacks are added where this user may read them.
    """
    lines = []
    for thread in _threads(pid):
        with contextlib.suppress(OSError):  # threads come and go
            name = (thread / "comm").read_text().strip()
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            wait = (thread / "wchan").read_text().strip("0\n") or "-"
            lines.append(f"{thread.name} {name}: state {state}, waits in {wait}")
        with contextlib.suppress(OSError):
            lines += [f"    {line}" for line in (thread / "stack").read_text().splitlines()]
    return "\n".join(lines)


def _threads(pid: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(Path(f"/proc/{pid}/task").iterdir())[:MAX_THREADS]
