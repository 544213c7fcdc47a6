"""The scenarios of a chaos run: what is done to whom, how often, and what is aimed at."""

from __future__ import annotations

import difflib
import enum
import signal

import msgspec

from hybridgen.errors import ConfigError

SAMPLERS = ("sampler-0", "sampler-1")
DETOKENIZERS = ("detokenizer-0", "detokenizer-1")
TOKENIZERS = ("tokenizer-0",)
GATEWAY = "gateway-0"
SUPERVISOR = "supervisor"
ROLES = (*TOKENIZERS, *DETOKENIZERS, *SAMPLERS, "gpu-0", "coscheduler-0", GATEWAY)


class Plan(enum.StrEnum):
    """How a scenario goes about it."""

    STRIKE = "strike"  # a signal; the next when the tree is whole again
    BEAT = "beat"  # a signal every so often, whole or not
    FAULT = "fault"  # the processes do it themselves, at fault points
    PAUSE = "pause"  # SIGSTOP, and SIGCONT before anybody may mind
    GATEWAY = "gateway"  # a signal to the gateway under HTTP streams
    SUPERVISOR = "supervisor"  # signals to the supervisor, in a row; each time a fresh tree


class Aim(msgspec.Struct, frozen=True):
    """A number to reach."""

    figure: str
    limit: float
    is_least: bool = False

    def is_reached(self, value: float) -> bool:
        """Whether ``value`` is within the limit; NaN is not."""
        return value >= self.limit if self.is_least else value <= self.limit

    def verdict(self, value: float) -> str:
        """``is_reached`` for people."""
        return "reached" if self.is_reached(value) else "missed"

    def __str__(self) -> str:
        return f"{'≥' if self.is_least else '≤'} {self.limit:g}"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    text: str
    plan: Plan
    victims: tuple[str, ...] = ROLES
    signals: tuple[signal.Signals, ...] = (signal.SIGKILL,)
    fault: str = ""
    """For the environment of the tree; see ``hybridgen/fault.py``."""
    num_kills: int = 100
    pause_s: float = 0.0
    """Between two blows (BEAT, SUPERVISOR), or how long a process is stopped (PAUSE)."""
    aims: tuple[Aim, ...] = ()
    how: str = ""
    """What the supervisor has to say about each death; empty: what follows from the signal."""
    settings: dict[str, float] = {}
    """Options of the tree that are not as in other scenarios."""


_DETECTED = Aim("detected_p99_s", 0.020)
_WHOLE = Aim("whole_p95_s", 1.0)
# How many innocents may be quarantined. A fault that strikes at random can strike the same request
# twice, which then looks guilty: two deaths of a tokenizer with one prompt in hand, or three of the
# gpu process within one replay, the last with that row on trial. What was measured, much of it on a
# machine that had too much to do, stands here, scaled to the number of kills, with room above.
#
# Not at random: a process dies again only many prompts or steps later. 0 of 160 deaths.
_POISONED_BY_FAULTS = Aim("num_poisoned", 1)
# A death in four comes while the last one is made good, so one in sixteen is a third: 16 of 155.
_POISONED_BY_TORN_RINGS = Aim("num_poisoned", 10)
# A tokenizer dies at one store in 40, which may be of the same prompt again: 4 of 301 deaths.
_POISONED_BY_TORN_SLOTS = Aim("num_poisoned", 4)
# Half a minute and a thousand steps between two of them: every row moves on. At a thousand steps of
# each incarnation, not at random: two stalls in a row are as long as a request may take.
_POISONED_BY_STALLS = Aim("num_poisoned", 0)
# One role in eight is struck every 2 s: the gpu process hardly ever thrice in a row. 0 of 1,074.
_POISONED_BY_MIXED = Aim("num_poisoned", 20)
#: Each process at its so manyth passage, whatever its incarnation: so every role has its turn.
_EXIT0 = (
    "tokenizer/tokenizer.encode:exit0@80!,detokenizer/detokenizer.send:exit0@600!,"
    "sampler/sampler.sample:exit0@600!,gpu/gpu.step:exit0@700!,"
    "coscheduler/coscheduler.turn:exit0@1500!,gateway/gateway.request:exit0@20!"
)

SCENARIOS = (
    Scenario(
        name="kill-tokenizer",
        text="SIGKILL a tokenizer",
        plan=Plan.STRIKE,
        victims=TOKENIZERS,
        num_kills=200,
        aims=(_DETECTED, _WHOLE),
    ),
    Scenario(
        name="kill-detokenizer",
        text="SIGKILL a detokenizer",
        plan=Plan.STRIKE,
        victims=DETOKENIZERS,
        num_kills=200,
        aims=(_DETECTED, _WHOLE, Aim("stall_p50_s", 0.05)),
    ),
    Scenario(
        name="kill-sampler",
        text="SIGKILL a sampler in mid-stream",
        plan=Plan.STRIKE,
        victims=SAMPLERS,
        num_kills=200,
        aims=(_DETECTED, Aim("stall_p50_s", 0.05), Aim("stall_p99_s", 1.5)),
    ),
    Scenario(
        name="kill-gpu",
        text="SIGKILL the gpu process in mid-decode",
        plan=Plan.STRIKE,
        victims=("gpu-0",),
        num_kills=50,
        aims=(_DETECTED, Aim("whole_max_s", 2.0)),
    ),
    Scenario(
        name="kill-coscheduler",
        text="SIGKILL the coscheduler",
        plan=Plan.STRIKE,
        victims=("coscheduler-0",),
        num_kills=100,
        aims=(_DETECTED, Aim("accepts_max_s", 1.0)),
    ),
    Scenario(
        name="kill-gateway",
        text="SIGKILL the gateway under HTTP streams",
        plan=Plan.GATEWAY,
        victims=(GATEWAY,),
        num_kills=50,
        aims=(Aim("freed_max_s", 1.0), Aim("answers_max_s", 1.5), Aim("num_refused", 0)),
    ),
    Scenario(
        name="kill-supervisor",
        text="SIGKILL the supervisor, then a start on the same port",
        plan=Plan.SUPERVISOR,
        victims=(SUPERVISOR,),
        num_kills=50,
        aims=(Aim("gone_max_s", 1.0),),
    ),
    Scenario(
        name="stop",
        text="SIGTERM under load, drain limit 2 s",
        plan=Plan.SUPERVISOR,
        victims=(SUPERVISOR,),
        signals=(signal.SIGTERM,),
        num_kills=5,
        settings={"drain_timeout_s": 2.0},
        aims=(Aim("gone_max_s", 3.0),),
    ),
    Scenario(
        name="stop-twice",
        text="SIGTERM under load, and again half a second later",
        plan=Plan.SUPERVISOR,
        victims=(SUPERVISOR,),
        signals=(signal.SIGTERM, signal.SIGTERM),
        num_kills=5,
        pause_s=0.5,
        aims=(Aim("gone_max_s", 2.0),),
    ),
    *(
        Scenario(
            name=name,
            text=f"{signum.name} to each role in turn",
            plan=Plan.STRIKE,
            signals=(signum,),
            num_kills=2 * len(ROLES),
            aims=(_DETECTED,),
        )
        for name, signum in (
            ("kill-each", signal.SIGKILL),
            ("die-segv", signal.SIGSEGV),
            ("die-abort", signal.SIGABRT),
            ("die-bus", signal.SIGBUS),
        )
    ),
    Scenario(
        name="die-exit0",
        text="each role ends with code 0 that nobody asked for",
        plan=Plan.FAULT,
        fault=_EXIT0,
        num_kills=40,
        how="exited with code 0 without being asked",
        aims=(_POISONED_BY_FAULTS,),
    ),
    Scenario(
        name="die-raise",
        text="an exception in each role",
        plan=Plan.FAULT,
        fault=_EXIT0.replace("exit0", "raise"),
        num_kills=40,
        how="exited with code 70: a fault on purpose",
        aims=(_POISONED_BY_FAULTS,),
    ),
    Scenario(
        name="pause",
        text="SIGSTOP each role for half a second",
        plan=Plan.PAUSE,
        victims=(*ROLES, SUPERVISOR),
        num_kills=2 * len((*ROLES, SUPERVISOR)),
        pause_s=0.5,
        aims=(Aim("num_restarts", 0),),
    ),
    Scenario(
        name="hang",
        text="SIGSTOP each role for good",
        plan=Plan.STRIKE,
        signals=(signal.SIGSTOP,),
        num_kills=len(ROLES),
        how="after it had stood still",
        settings={"hang_timeout_s": 3.0, "gpu_hang_timeout_s": 3.0},
        aims=(Aim("detected_max_s", 5.0),),
    ),
    Scenario(
        name="stall-gpu",
        text="a step of the gpu process takes a minute",
        plan=Plan.FAULT,
        victims=("gpu-0",),
        fault="gpu/gpu.step:stall=60s@1000!",
        num_kills=1,
        how="after it had stood still",
        aims=(Aim("detected_max_s", 32.0), _POISONED_BY_STALLS),
    ),
    Scenario(
        name="torn-ring",
        text="the gpu process dies between two stores of a ring commit",
        plan=Plan.FAULT,
        victims=("gpu-0",),
        fault="gpu/ring.commit:kill@1/1500",
        num_kills=60,
        how="killed by SIGKILL",
        aims=(_POISONED_BY_TORN_RINGS,),
    ),
    Scenario(
        name="torn-slot",
        text="coscheduler or tokenizer die between two stores of a slot",
        plan=Plan.FAULT,
        victims=("coscheduler-0", *TOKENIZERS),
        fault="coscheduler/slot.commit:kill@1/60,tokenizer/slot.commit:kill@1/40",
        num_kills=60,
        how="killed by SIGKILL",
        aims=(_POISONED_BY_TORN_SLOTS,),
    ),
    Scenario(
        name="mixed",
        text="SIGKILL a random role every 2 s",
        plan=Plan.BEAT,
        num_kills=900,
        pause_s=2.0,
        aims=(Aim("windows_share", 0.99, is_least=True), _POISONED_BY_MIXED),
    ),
)


def scenario(name: str) -> Scenario:
    """The scenario of that name.

    Raises:
        ConfigError: there is none; names near ones, and all.
    """
    names = [one.name for one in SCENARIOS]
    if name in names:
        return SCENARIOS[names.index(name)]
    near = difflib.get_close_matches(name, names)
    raise ConfigError(
        "no such scenario",
        value=name,
        limit=", ".join(names),
        remedy=f"Did you mean {', '.join(near)}?" if near else "Name one of those",
    )
