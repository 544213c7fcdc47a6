"""What a tree writes about faults, deaths and returns: its JSON log, read while it grows."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import msgspec

_DEATH = re.compile(r"(\S+) \(pid (\d+), incarnation (\d+)\) ([^;]*)")
_FAULT = re.compile(r"fault at (\S+): (\w+)")
_RETURN = re.compile(r"(\S+) is back \(incarnation (\d+)\)")
_NOTE = re.compile(r"noted that (\S+) \(incarnation (\d+)\) died")


class LogLine(msgspec.Struct, frozen=True):
    """What is read of a line."""

    ts: str
    process: str
    message: str

    @property
    def at_s(self) -> float:
        """Seconds since the epoch."""
        return datetime.fromisoformat(self.ts).timestamp()


class Death(msgspec.Struct, frozen=True):
    """The supervisor saw a process end."""

    at_s: float
    name: str
    pid: int
    incarnation: int
    how: str


class FaultSeen(msgspec.Struct, frozen=True):
    """A process is about to fail at a fault point."""

    at_s: float
    name: str


class Return(msgspec.Struct, frozen=True):
    """A replacement reported ready."""

    at_s: float
    name: str
    incarnation: int


class Note(msgspec.Struct, frozen=True):
    """The coscheduler has acted on a death."""

    at_s: float
    name: str
    incarnation: int


class TreeLog:
    """Reads on from where it stopped. Times are of the wall clock.

    Args:
        path: the file that the tree's standard error goes to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.deaths: list[Death] = []
        self.returns: list[Return] = []
        self.faults: list[FaultSeen] = []
        self.notes: list[Note] = []
        self.others: list[str] = []
        """Lines that are no JSON: what a process says when it dies in native code."""

    def read(self) -> None:
        """Take in every line that is complete by now."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return
        self._offset += len(whole) + 1
        for line in whole.split(b"\n"):
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            entry = msgspec.json.decode(line, type=LogLine)
        except msgspec.DecodeError:
            self.others.append(line.decode(errors="replace"))
            return
        if _FAULT.match(entry.message):
            self.faults.append(FaultSeen(entry.at_s, entry.process))
        elif note := _NOTE.match(entry.message):
            self.notes.append(Note(entry.at_s, note[1], int(note[2])))
        if not entry.process.startswith("supervisor"):
            return
        if death := _DEATH.match(entry.message):
            name, pid, incarnation, how = death.groups()
            self.deaths.append(Death(entry.at_s, name, int(pid), int(incarnation), how))
        elif back := _RETURN.match(entry.message):
            self.returns.append(Return(entry.at_s, back[1], int(back[2])))
