"""How far a start is, as one number for clients that wait: pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hybridgen.ipc.board import Role

#: Loading the model takes nearly all of a start; the rest is shared by the other processes.
GPU_WEIGHT = 0.9


class Starting(Protocol):
    """A process that is being started."""

    @property
    def role(self) -> Role:
        """What it is for."""

    @property
    def loaded(self) -> float:
        """How far it says it is, 0 … 1; 1 when it is ready."""


def loaded_share(processes: Iterable[Starting]) -> float:
    """Between 0, nothing is there, and 1, all processes are ready."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    for process in processes:
        shares[process.role is Role.GPU].append(process.loaded)
    return GPU_WEIGHT * _mean(shares[True]) + (1.0 - GPU_WEIGHT) * _mean(shares[False])


def _mean(shares: list[float]) -> float:
    return sum(shares) / len(shares) if shares else 1.0
