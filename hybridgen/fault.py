"""Faults on purpose: named points in the processes of a tree at which one can be made to fail.

``HYBRIDGEN_FAULT="gpu.step:stall=20s@3,sampler-0/sampler.sample:kill@1/500"``: a comma between
faults, each ``[role[-index]/]point:kind[=time][@when][!]``.

``@3`` is the third time that the process passes the point (``@1`` when nothing is said), and counts
in the first incarnation only, so that a replacement lives; with ``!`` in every one. ``@1/500`` is
each time with that probability, in every incarnation; ``HYBRIDGEN_FAULT_SEED`` chooses the course.

Without the variable a point costs one call that looks at an empty dict.
"""

from __future__ import annotations

import enum
import errno
import logging
import os
import random
import re
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, NoReturn

from hybridgen.errors import ConfigError, InternalError

logger = logging.getLogger(__name__)

FAULT_ENV: Final = "HYBRIDGEN_FAULT"
SEED_ENV: Final = "HYBRIDGEN_FAULT_SEED"

POINTS: Final = {
    "tokenizer.encode": "a prompt arrived, nothing of it is done",
    "coscheduler.turn": "orders and facts were taken in, nothing was answered",
    "coscheduler.admit": "a request has its slot, its tokenizer does not know",
    "gpu.step": "before a decode step",
    "gpu.prefill": "before a piece of a prompt",
    "sampler.sample": "a step's rows are sampled, nobody was woken",
    "detokenizer.send": "text is ready, not sent",
    "gateway.request": "an HTTP request was read, nothing was answered",
    "ring.commit": "between any two stores that publish a step or its answers",
    "slot.commit": "between any two stores that publish a slot, its lengths or its prompt",
    "segment.create": "a segment has a name, no memory",
}


class Kind(enum.StrEnum):
    """What happens at a point."""

    KILL = "kill"
    SEGV = "segv"
    BUS = "bus"
    ABORT = "abort"
    EXIT0 = "exit0"  # ends as if all were well
    STOP = "stop"  # SIGSTOP; somebody else has to continue it
    STALL = "stall"  # the thread does nothing for so long, 20 s unless given
    DELAY = "delay"  # the same, 10 ms unless given
    RAISE = "raise"  # InternalError
    ENOSPC = "enospc"  # OSError


_SIGNALS: Final = {
    Kind.KILL: signal.SIGKILL,
    Kind.SEGV: signal.SIGSEGV,
    Kind.BUS: signal.SIGBUS,
    Kind.ABORT: signal.SIGABRT,
    Kind.STOP: signal.SIGSTOP,
}
_DEFAULT_S: Final = {Kind.STALL: 20.0, Kind.DELAY: 0.01}
_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FORM = re.compile(
    r"(?:(?P<role>[a-z]+(?:-\d+)?)/)?(?P<point>[\w.]+):(?P<kind>\w+)"
    r"(?:=(?P<time>\d+(?:\.\d+)?)(?P<unit>us|ms|s))?"
    r"(?:@(?:1/(?P<one_in>[1-9]\d*)|(?P<nth>[1-9]\d*)))?(?P<each>!)?"
)


class Fault(NamedTuple):
    """One fault as it was asked for."""

    point: str
    kind: Kind
    pause_s: float = 0.0
    nth: int = 1
    one_in: int = 0
    """Each time with probability 1 / one_in; 0: the nth time alone."""
    role: str = ""
    """``role`` or ``role-index``; empty: whoever passes the point."""
    is_for_each: bool = False
    """An nth time counts in replacements, too."""

    def concerns(self, process_name: str, incarnation: int) -> bool:
        """Whether it can happen in this process."""
        is_meant = self.role in {"", process_name, process_name.rpartition("-")[0]}
        return is_meant and (incarnation == 1 or self.is_for_each or self.one_in > 0)


class Trap:
    """A fault in the process that it concerns.

    Args:
        fault: what to do, and when.
        chance: decides about probabilities.
        act: does it.
    """

    def __init__(self, fault: Fault, chance: random.Random, act: Callable[[Fault], None]) -> None:
        self._fault = fault
        self._chance = chance
        self._act = act
        self._num_passed = 0

    def passed(self) -> None:
        """The process is at the point once more."""
        fault = self._fault
        self._num_passed += 1
        if fault.one_in:
            if self._chance.randrange(fault.one_in):
                return
        elif self._num_passed != fault.nth:
            return
        self._act(fault)


_traps: dict[str, list[Trap]] = {}


def point(name: str) -> None:
    """The process is at the point ``name``, a key of POINTS."""
    if _traps:
        for trap in _traps.get(name, ()):
            trap.passed()


def arm(environment: Mapping[str, str], process_name: str, incarnation: int) -> None:
    """Set the traps of this process, once at its start; none without the variable.

    Args:
        environment: what to read the faults from.
        process_name: ``role-index``, or ``supervisor``.
        incarnation: 1 for the first process of that name.

    Raises:
        ConfigError: a fault that cannot be read, naming what can.
    """
    _traps.clear()
    seed = environment.get(SEED_ENV, "0")
    for fault in parse(environment.get(FAULT_ENV, "")):
        if fault.concerns(process_name, incarnation):
            chance = random.Random(f"{seed} {process_name} {incarnation} {fault}")
            _traps.setdefault(fault.point, []).append(Trap(fault, chance, act))
    if _traps:
        logger.warning("faults are to happen here on purpose, at %s", ", ".join(_traps))


def parse(text: str) -> list[Fault]:
    """The faults that ``text`` describes.

    Raises:
        ConfigError: malformed, or an unknown point or kind.
    """
    return [_parse_one(part.strip()) for part in text.split(",") if part.strip()]


def _parse_one(text: str) -> Fault:
    match = _FORM.fullmatch(text)
    if match is None:
        _refuse("a fault cannot be read", text, "[role[-index]/]point:kind[=time][@n|@1/n][!]")
    if match["point"] not in POINTS:
        _refuse("no such fault point", match["point"], ", ".join(POINTS))
    if match["kind"] not in list(Kind):
        _refuse("no such kind of fault", match["kind"], ", ".join(Kind))
    kind = Kind(match["kind"])
    pause_s = _DEFAULT_S.get(kind, 0.0)
    if match["time"] is not None:
        if kind not in _DEFAULT_S:
            _refuse("this kind of fault takes no time", text, ", ".join(_DEFAULT_S))
        pause_s = float(match["time"]) * _UNITS_S[match["unit"]]
    return Fault(
        point=match["point"],
        kind=kind,
        pause_s=pause_s,
        nth=int(match["nth"] or 1),
        one_in=int(match["one_in"] or 0),
        role=match["role"] or "",
        is_for_each=match["each"] is not None,
    )


def _refuse(message: str, value: str, limit: str) -> NoReturn:
    raise ConfigError(message, value=value, limit=limit, remedy=f"Correct {FAULT_ENV}")


def act(fault: Fault) -> None:
    """Let it happen, after a word in the log.

    Raises:
        InternalError: a fault of kind RAISE.
        OSError: a fault of kind ENOSPC.
    """
    logger.warning("fault at %s: %s", fault.point, fault.kind.value)
    if fault.kind in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[fault.kind])
    elif fault.kind is Kind.EXIT0:
        os._exit(0)
    elif fault.kind is Kind.RAISE:
        raise InternalError("a fault on purpose", value=fault.point, remedy=f"Unset {FAULT_ENV}")
    elif fault.kind is Kind.ENOSPC:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (a fault on purpose)")
    else:
        time.sleep(fault.pause_s)
