"""Which CPUs there are, and which process gets which of them.

Only CPUs that this process may use count: the affinity mask bounds where, the cgroup quota how
much; CPUs that other trees of this user have claimed are left to them. Binding is by affinity, and
where groups may be written by these, too (``cgroup``). ``choose`` is pure, ``apply`` touches a
process.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from hybridgen.ipc.board import Role

logger = logging.getLogger(__name__)

#: With this few CPUs any partition starves somebody; all processes share all of them.
MAX_SHARED_CPUS = 4
CGROUP_ROOT = Path("/sys/fs/cgroup")


class CpuSupply(NamedTuple):
    """What this process may use."""

    allowed: tuple[int, ...]
    """CPU numbers of the affinity mask."""
    quota: float | None
    """CPUs' worth of time that the cgroup grants; None without a quota."""
    is_partial: bool = False
    """Other trees have claimed the rest of the mask."""

    @property
    def effective(self) -> int:
        """Whole CPUs usable at once, at least 1."""
        num_cpus = len(self.allowed)
        if self.quota is not None:
            num_cpus = min(num_cpus, math.floor(self.quota))
        return max(1, num_cpus)

    def without(self, claimed: Collection[int]) -> CpuSupply:
        """What other trees have left; everything, to be shared, when that is nothing."""
        left = tuple(cpu for cpu in self.allowed if cpu not in claimed)
        if not left:
            logger.warning("other trees have claimed all CPUs; this one shares them")
        is_partial = 0 < len(left) < len(self.allowed)
        return self._replace(allowed=left or self.allowed, is_partial=is_partial)


def read_supply() -> CpuSupply:
    """The CPUs of this process, from its affinity mask and its cgroup (v2 or v1)."""
    allowed = tuple(sorted(psutil.Process().cpu_affinity() or range(os.cpu_count() or 1)))
    membership = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    return CpuSupply(allowed, read_quota(CGROUP_ROOT, membership))


def read_quota(cgroup_root: Path, membership: str) -> float | None:
    """CPUs granted by the tightest cgroup on the way to the root; None when unlimited.

    Args:
        cgroup_root: where cgroups are mounted.
        membership: text of /proc/self/cgroup (``hierarchy:controllers:path`` lines).
    """
    quotas = []
    for line in membership.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            base, read = cgroup_root, _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = cgroup_root / controllers, _quota_v1
        else:
            continue
        folder = base / path.lstrip("/")
        for ancestor in [folder, *folder.parents]:
            if ancestor.is_relative_to(base) and (quota := read(ancestor)) is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> float | None:
    words = _words(folder / "cpu.max")
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: Path) -> float | None:
    quota_us, period_us = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    if quota_us and period_us and int(quota_us[0]) > 0:
        return int(quota_us[0]) / int(period_us[0])
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:  # no such controller here: no quota
        return []


def physical_cores() -> int:
    """Cores of the machine; hyper-threads count once."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


class Placement(NamedTuple):
    """The choice for a whole tree."""

    cpus: dict[str, list[int]]
    """Process name → CPUs; an empty list leaves the inherited mask."""
    note: str
    """One phrase for the banner."""
    claimed: tuple[int, ...] = ()
    """CPUs that trees started later leave alone."""

    def cpus_of(self, role: Role) -> list[int]:
        """All CPUs that processes of a role may run on; empty when they are not bound.

        The gpu process reads weights with several threads, on the CPUs that are nobody's own.
        """
        names = {name for name in self.cpus if name.rpartition("-")[0] == role.label}
        if role is Role.GPU:
            names |= {name for name, cpus in self.cpus.items() if len(cpus) > 1}
        return sorted({cpu for name in names for cpu in self.cpus[name]})


def choose(
    supply: CpuSupply,
    workers: Sequence[tuple[str, Role]],
    *,
    is_disabled: bool,
    is_cpu_device: bool,
    max_cpus: int | None = None,
) -> Placement:
    """Pick CPUs for the named processes inside ``supply.allowed``.

    Args:
        supply: what the tree may use.
        workers: name and role of each process.
        is_disabled: nothing is bound.
        is_cpu_device: the CPU is the device.
        max_cpus: the tree keeps to so many CPUs, and claims them all; None: it uses all that are
            there, and claims those that one process has for itself.

    With more than ``MAX_SHARED_CPUS`` CPUs and a real device the gpu process, which feeds it, and
    each sampler get a CPU of their own as long as two are left for everybody else. When the CPU
    is the device, its threads want every CPU and nothing is kept from them.
    """
    names = [name for name, _ in workers]
    if is_disabled:
        return Placement({name: [] for name in names}, "no pinning (disabled)")
    if len(supply.allowed) <= MAX_SHARED_CPUS or is_cpu_device:
        note = f"all processes share CPUs {format_cpus(supply.allowed)}"
        shared = list(supply.allowed) if supply.is_partial else []
        return Placement({name: list(shared) for name in names}, note)
    mine = supply.allowed[:max_cpus]
    free = list(mine)
    cpus: dict[str, list[int]] = {}
    for wanted in (Role.GPU, Role.SAMPLER):
        for name, role in workers:
            if role is wanted and len(free) > 2:
                cpus[name] = [free.pop(0)]
    for name in names:
        cpus.setdefault(name, list(free))
    own = [cpu for cpu in mine if cpu not in free]
    note = f"{len(own)} processes on CPUs of their own, others on {format_cpus(free)}"
    return Placement(cpus, note, tuple(own) if max_cpus is None else mine)


def apply(pid: int, name: str, cpus: Sequence[int]) -> None:
    """Bind process ``pid`` now, so that threads it starts later inherit the mask.

    Warns when the kernel grants something else; a missing right never stops a start.
    """
    if not cpus:
        return
    try:
        process = psutil.Process(pid)
        process.cpu_affinity(list(cpus))
        effective = process.cpu_affinity()
    except psutil.NoSuchProcess:  # its pidfd tells the supervisor in a moment
        return
    except (psutil.AccessDenied, OSError, ValueError) as error:
        logger.warning("%s is not pinned to CPUs %s: %s", name, format_cpus(cpus), error)
        return
    if sorted(effective or []) != sorted(cpus):
        logger.warning(
            "%s runs on CPUs %s, not on %s", name, format_cpus(effective or []), format_cpus(cpus)
        )


def format_cpus(cpus: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` → ``0-2,5``."""
    parts: list[str] = []
    ordered = sorted(cpus)
    start = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
            low, high = ordered[start], ordered[i - 1]
            parts.append(str(low) if low == high else f"{low}-{high}")
            start = i
    return ",".join(parts)


def parse_cpus(text: str) -> list[int]:
    """The inverse of ``format_cpus``.

    Raises:
        ValueError: it is no list of CPUs.
    """
    cpus: list[int] = []
    for part in text.split(",") if text else []:
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus
