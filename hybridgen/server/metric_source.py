"""Where the values of metrics come from: one reading of the board."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridgen.ipc.board import HISTOGRAMS, Role
from hybridgen.server.board_reading import Process, Reading
from hybridgen.server.metric import Distribution, Labelled, Mean, Value

Read = Callable[[Reading], Sequence[Labelled]]
_NS_PER_S = 1e9
_SPECS = {spec.name: spec for specs in HISTOGRAMS.values() for spec in specs}

BRAIN, GPU, SAMPLER = Role.COSCHEDULER, Role.GPU, Role.SAMPLER
TOKENIZER, DETOKENIZER, GATEWAY = Role.TOKENIZER, Role.DETOKENIZER, Role.GATEWAY


def one(value: Callable[[Reading], Value]) -> Read:
    """A value without labels."""
    return lambda reading: [((), value(reading))]


def read_total(role: Role, counter: str) -> Read:
    """A value without labels: a counter, of all processes of a role together."""
    return one(total_of(role, counter))


def by(values: dict[str, Callable[[Reading], Value]]) -> Read:
    """Values by their one label."""
    return lambda reading: [((label,), value(reading)) for label, value in values.items()]


def each(value: Callable[[Process], Value]) -> Read:
    """A value of each process, by its name and role."""
    return lambda reading: [
        ((process.name, process.seen.role.label), value(process)) for process in reading.processes
    ]


def histogram(name: str) -> Read:
    """A histogram of ipc/board.py, of all who fill it."""
    return one(lambda reading: Distribution(_SPECS[name], reading.histograms[name]))


def mean(role: Role, count: str, sum_ns: str) -> Read:
    """A summary: how many, and how long together."""
    return one(
        lambda reading: Mean(reading.total(role, count), reading.total(role, sum_ns) / _NS_PER_S)
    )


def total_of(role: Role, counter: str) -> Callable[[Reading], int]:
    """A counter, of all processes of a role together: one value, for ``one`` and ``by``."""
    return lambda reading: reading.total(role, counter)


def seconds(role: Role, counter: str) -> Callable[[Reading], float]:
    """A counter of nanoseconds, in seconds."""
    return lambda reading: reading.total(role, counter) / _NS_PER_S


def queued_s(reading: Reading) -> float:
    """Time that ended requests spent in queues."""
    return reading.histograms["queue"].sum / _NS_PER_S


def kv_usage(reading: Reading) -> float:
    """Share of the KV blocks that somebody holds."""
    num_blocks = reading.total(BRAIN, "blocks")
    return 1 - reading.total(BRAIN, "free_blocks") / num_blocks if num_blocks else 0.0


def used_blocks(reading: Reading) -> int:
    """KV blocks that somebody holds."""
    return reading.total(BRAIN, "blocks") - reading.total(BRAIN, "free_blocks")
