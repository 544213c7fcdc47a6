"""The supervisor's line to a service manager: systemd's notify protocol, without its library.

The manager names a datagram socket in NOTIFY_SOCKET and takes lines of ``NAME=value`` there:
READY=1 once the tree serves, STATUS= for people, STOPPING=1 when it ends, and with a watchdog
WATCHDOG=1 again and again. The last is sent only while the tree could serve a request, so a tree
that has stopped serving is ended and started again, however alive its supervisor is.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, MutableMapping
from typing import Protocol

from hybridgen.clock import Clock

logger = logging.getLogger(__name__)

#: The manager's queue is long; one that is full has a manager that does not look.
SEND_TIMEOUT_S = 0.1
#: Sent this often within the watchdog's time, so that one late turn of the loop does no harm.
BEATS_PER_LIMIT = 3
#: More waiting processes than this are counted, not named.
MAX_NAMED = 4


class Place(Protocol):
    """A place in the tree, as far as a status line tells of it."""

    @property
    def name(self) -> str:
        """``role-index``."""

    @property
    def is_ready(self) -> bool:
        """The process there can work."""

    @property
    def state_name(self) -> str:
        """What it does instead."""

    @property
    def last_exit(self) -> str:
        """How its predecessor ended; empty for a first one."""


class ServiceLink:
    """Tells one service manager, or nobody: then every call does nothing.

    Args:
        address: of its socket: a path, or ``@`` and an abstract name; empty for nobody.
        watchdog_s: within which it wants a beat; None without a watchdog.
        clock: seconds that never jump.
    """

    def __init__(self, address: str, watchdog_s: float | None, clock: Clock) -> None:
        self._address = address
        self._interval_s = None if watchdog_s is None else watchdog_s / BEATS_PER_LIMIT
        self._clock = clock
        self._beat_due_s = clock()
        self._told: set[str] = set()
        self._status = ""
        self._is_ready = False
        self._has_failed = False

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str], clock: Clock) -> ServiceLink:
        """The manager that ``environment`` names, which forgets it: children must not speak up."""
        address = environment.pop("NOTIFY_SOCKET", "")
        limit_us = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        is_meant = pid in {"", str(os.getpid())}
        has_watchdog = is_meant and limit_us.isdecimal() and int(limit_us) > 0
        if address and address[0] not in "/@":
            logger.warning("the service manager's socket %s is of a kind not known here", address)
            address = ""
        return cls(address, int(limit_us) / 1e6 if has_watchdog else None, clock)

    @classmethod
    def nobody(cls, clock: Clock) -> ServiceLink:
        """For trees that belong to one program."""
        return cls("", None, clock)

    @property
    def is_there(self) -> bool:
        """Somebody listens."""
        return self._address != ""

    @property
    def next_due_s(self) -> float | None:
        """When the next beat of the watchdog is due, on the clock; None when none is."""
        is_beating = self.is_there and self._is_ready and self._interval_s is not None
        return self._beat_due_s if is_beating else None

    def tell(self, *, is_ready: bool, is_stopping: bool, status: str) -> None:
        """Send what is new; call on every turn, and when ``next_due_s`` has come.

        Args:
            is_ready: a request sent now would be served.
            is_stopping: the tree is on its way to the end.
            status: one line for people.
        """
        self._is_ready = is_ready
        lines = []
        if is_ready:
            lines += self._once("READY=1")
        if is_stopping:
            lines += self._once("STOPPING=1")
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={' '.join(status.split())}")
        due_s, now_s = self.next_due_s, self._clock()
        if due_s is not None and self._interval_s is not None and now_s >= due_s:
            self._beat_due_s = now_s + self._interval_s
            lines.append("WATCHDOG=1")
        if lines and self.is_there:
            self._send("\n".join(lines))

    def _once(self, line: str) -> list[str]:
        is_new = line not in self._told
        self._told.add(line)
        return [line] if is_new else []

    def _send(self, message: str) -> None:
        address = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_TIMEOUT_S)
                sender.sendto(message.encode(), address)
        except OSError as error:
            if not self._has_failed:  # it may come back; a line a beat would fill the log
                logger.warning("the service manager cannot be told: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False


def loading_status(share: float, places: Iterable[Place]) -> str:
    """``loading 43 %: gpu-0 starting``."""
    return f"loading {share:.0%}: {_missing(places)}".replace("%", " %")


def serving_status(places: Iterable[Place]) -> str:
    """``ready``, or ``not ready: gpu-0 waiting (killed by SIGKILL)``."""
    missing = _missing(places)
    return f"not ready: {missing}" if missing else "ready"


def _missing(places: Iterable[Place]) -> str:
    texts = [_describe(place) for place in places if not place.is_ready]
    num_more = len(texts) - MAX_NAMED
    return ", ".join(texts[:MAX_NAMED]) + (f" and {num_more} more" if num_more > 0 else "")


def _describe(place: Place) -> str:
    why = f" ({place.last_exit})" if place.last_exit else ""
    return f"{place.name} {place.state_name}{why}"
