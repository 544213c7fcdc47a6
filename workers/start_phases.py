"""What a start takes its time with, for the log: a restart stops every stream for so long."""

from __future__ import annotations

import os
import time

from hybridgen.clock import Clock
from hybridgen.ipc.board import start_ticks

#: Phases shorter than this are left out.
MIN_SHOWN_S = 0.005


class StartPhases:
    """Phases follow each other without a gap; the first began with the process.

    Args:
        born_s: when that was, on ``clock``.
        clock: seconds that never jump.
    """

    def __init__(self, born_s: float, clock: Clock) -> None:
        self._clock = clock
        self._born_s = self._began_s = born_s
        self._name = "interpreter"
        self._took_s: dict[str, float] = {}

    @classmethod
    def of_this_process(cls) -> StartPhases:
        """From the kernel's word for its birth."""
        born_s = start_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
        return cls(born_s, lambda: time.clock_gettime(time.CLOCK_BOOTTIME))

    def begin(self, name: str) -> None:
        """The phase before is over; the same name goes on with the same phase."""
        if name == self._name:
            return
        now_s = self._clock()
        self._took_s[self._name] = self._took_s.get(self._name, 0.0) + now_s - self._began_s
        self._name, self._began_s = name, now_s

    def __str__(self) -> str:
        """``2.10 s: loading libraries 1.30, packing weights 0.62, …``, longest first."""
        self.begin("")
        phases = sorted(self._took_s.items(), key=lambda phase: -phase[1])
        shown = [f"{name} {took_s:.2f}" for name, took_s in phases if took_s >= MIN_SHOWN_S]
        return f"{self._began_s - self._born_s:.2f} s: {', '.join(shown)}"
