"""The groups of one tree (cgroup v2), where the group that it was started in may be written.

::

    <group of the start>/               its other processes stay as they are
      hybridgen-<instance>/             cpu.weight, memory.max; locked by the supervisor
        supervisor/                     the supervisor, and processes that have no role yet
        gpu/ sampler/ tokenizer/ …      a leaf per role: cpuset.cpus, cpu.weight, cgroup.kill

A group with controllers for its children may hold no processes itself, so the supervisor moves
into a leaf first. Whoever else is in the group of the start is left alone; then the kernel refuses
the controllers (but for the very root), and what is left is ``cgroup.kill``.

The lock (flock on the folder) ends with the supervisor, whoever kills it: a group whose lock is
free belongs to a dead tree, and the next start removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hybridgen.errors import ConfigError
from hybridgen.ipc.board import Role
from hybridgen.launch.cgroup_fs import CgroupFs
from hybridgen.launch.placement import format_cpus

logger = logging.getLogger(__name__)

CONTROLLERS = ("cpuset", "cpu", "memory")
PREFIX = "hybridgen-"
SUPERVISOR_LEAF = "supervisor"
#: Shares of a crowded CPU, 100 being the kernel's default: first whom a step waits for.
ROLE_WEIGHTS = {
    Role.GPU: 800,
    Role.SAMPLER: 800,
    Role.COSCHEDULER: 400,
    Role.DETOKENIZER: 200,
    Role.GATEWAY: 200,
    Role.TOKENIZER: 100,
}
REMEDY = (
    "Start the tree in a group of its own that it may write (systemd: Delegate=yes, or "
    "`systemd-run --user --scope -p Delegate=yes hybridgen serve …`)"
)


class GroupLimits(NamedTuple):
    """What was asked for beside the placement."""

    cpu_weight: int = 0
    """Of the whole tree against its neighbours; 0 leaves the kernel's 100."""
    memory_max_bytes: int = 0
    """For all processes of the tree together; 0 means no limit."""


class TreeGroups:
    """The groups of one tree. Made by ``make_groups``.

    Attributes:
        path: the folder above the leaves.
        controllers: those that the leaves have.
        refusal: why some are missing; empty when none is.
    """

    def __init__(self, path: Path, lock_fd: int, fs: CgroupFs) -> None:
        self.path = path
        self.controllers: list[str] = []
        self.refusal = ""
        self._enabled_above: list[str] = []
        self._lock_fd = lock_fd
        self._fs = fs
        self._leaves: dict[Role, Path] = {}

    @classmethod
    def create(cls, path: Path, fs: CgroupFs) -> TreeGroups:
        """Make and lock the folder of a new tree.

        Raises:
            OSError: the group of the start cannot be written.
        """
        while True:  # a sweep that sees it before we hold it takes it for a dead tree's
            fs.make(path)
            with contextlib.suppress(FileNotFoundError):
                lock_fd = _lock(path)
                if lock_fd is None:
                    continue
                if path.exists() and os.path.samestat(os.fstat(lock_fd), path.stat()):
                    return cls(path, lock_fd, fs)
                os.close(lock_fd)

    def set_up(self, cpus: Mapping[Role, Sequence[int]], limits: GroupLimits) -> None:
        """Move in, get the controllers, make the leaves.

        Args:
            cpus: the CPUs of each role; none leaves a role all that the tree has.
            limits: of the whole tree.

        Raises:
            OSError: not even the supervisor can be moved.
            ConfigError: a limit was asked for that cannot be set.
        """
        self._fs.make(self.path / SUPERVISOR_LEAF)
        self._fs.write(self.path / SUPERVISOR_LEAF, "cgroup.procs", str(os.getpid()))
        self._enabled_above = self._enable(self.path.parent)
        self._enable(self.path)
        shared_out = self._fs.words(self.path, "cgroup.subtree_control")
        self.controllers = [name for name in CONTROLLERS if name in shared_out]
        self._set_limits(limits)
        for role, role_cpus in cpus.items():
            leaf = self._leaves[role] = self.path / role.label
            self._fs.make(leaf)
            if role_cpus and "cpuset" in self.controllers:
                self._fs.write(leaf, "cpuset.cpus", format_cpus(role_cpus))
            if "cpu" in self.controllers:
                self._fs.write(leaf, "cpu.weight", str(ROLE_WEIGHTS[role]))

    def place(self, pid: int, role: Role) -> None:
        """Move a process into the leaf of its role; threads and children that come follow it."""
        try:
            self._fs.write(self._leaves[role], "cgroup.procs", str(pid))
        except OSError as error:
            if error.errno != errno.ESRCH:  # ended meanwhile: its pidfd says so
                logger.warning("process %d is not in the group of its role: %s", pid, error)

    def kill(self) -> None:
        """SIGKILL everything in the leaves, processes that workers started included."""
        for leaf in self._leaves.values():
            self._kill(leaf)

    def remove(self) -> None:
        """Remove the groups, the supervisor leaving last; what is still in use is left behind."""
        self._move_out()
        self.clear()

    def clear(self) -> None:
        """Kill what is in the leaves, remove them and the folder, let the lock go."""
        with contextlib.suppress(OSError):  # somebody is in it still: a later start sweeps it
            for leaf in filter(Path.is_dir, self.path.iterdir()):
                if leaf.name != SUPERVISOR_LEAF:
                    self._kill(leaf)
                with contextlib.suppress(OSError):
                    self._fs.remove(leaf)
            self._fs.remove(self.path)
        os.close(self._lock_fd)

    def _move_out(self) -> None:
        """Back to where the supervisor came from, which must hold processes again for that."""
        above = self.path.parent
        try:
            for name in self._enabled_above:
                self._fs.write(self.path, "cgroup.subtree_control", f"-{name}")
                self._fs.write(above, "cgroup.subtree_control", f"-{name}")
            self._fs.write(above, "cgroup.procs", str(os.getpid()))
        except OSError as error:  # another tree's groups need them: a later start sweeps ours
            logger.debug("the supervisor stays in %s: %s", self.path, error)

    def _enable(self, folder: Path) -> list[str]:
        """Give the children of ``folder`` the controllers that it has; those that are new."""
        have = self._fs.words(folder, "cgroup.subtree_control")
        enabled = []
        for name in CONTROLLERS:
            if name in have:
                continue
            if name not in self._fs.words(folder, "cgroup.controllers"):
                self.refusal = self.refusal or f"{folder} has no {name} controller"
                continue
            try:
                self._fs.write(folder, "cgroup.subtree_control", f"+{name}")
                enabled.append(name)
            except OSError as error:
                is_busy = error.errno == errno.EBUSY
                why = "other processes are in it" if is_busy else str(error.strerror)
                self.refusal = self.refusal or f"{folder} cannot share out {name}: {why}"
        return enabled

    def _set_limits(self, limits: GroupLimits) -> None:
        wanted = (
            ("cpu", "cpu.weight", limits.cpu_weight, "--cgroup-cpu-weight"),
            ("memory", "memory.max", limits.memory_max_bytes, "--cgroup-memory-max"),
        )
        for controller, file, value, flag in wanted:
            if not value:
                continue
            # The tree's own files come from the controllers of the folder above.
            if controller not in self._fs.words(self.path, "cgroup.controllers"):
                raise ConfigError(
                    f"{flag} cannot be set here", value=value, limit=self.refusal, remedy=REMEDY
                )
            self._fs.write(self.path, file, str(value))

    def _kill(self, leaf: Path) -> None:
        with contextlib.suppress(OSError):  # kernels before 5.14 cannot; pidfds did it already
            self._fs.write(leaf, "cgroup.kill", "1")


def make_groups(
    above: Path | None,
    instance: str,
    cpus: Mapping[Role, Sequence[int]],
    limits: GroupLimits,
    *,
    is_required: bool,
    fs: CgroupFs,
) -> TreeGroups | None:
    """The groups of a new tree; None, after a warning, where there can be none.

    Args:
        above: the group of the start; None where there is no v2 hierarchy.
        instance: short hex name of the tree.
        cpus: the CPUs of each role.
        limits: of the whole tree.
        is_required: groups with all controllers, or no start.
        fs: how groups are written.

    Raises:
        ConfigError: they are required, or a limit was asked for, and cannot be had.
    """
    is_required = is_required or limits != GroupLimits()
    if above is None:
        _go_without("no cgroup v2 hierarchy is mounted", cpus, is_required=is_required)
        return None
    with contextlib.ExitStack() as undo:
        try:
            groups = TreeGroups.create(above / f"{PREFIX}{instance}", fs)
            undo.callback(groups.remove)
            groups.set_up(cpus, limits)
        except OSError as error:
            refusal = f"{above} cannot be used: {error.strerror}"
            _go_without(refusal, cpus, is_required=is_required)
            return None
        if groups.refusal:  # then there is at least cgroup.kill
            _go_without(groups.refusal, cpus, is_required=is_required)
        undo.pop_all()
    return groups


def examine(above: Path | None, fs: CgroupFs) -> tuple[str, bool]:
    """What the group of the start is good for, and whether that is all; changes nothing."""
    if above is None:
        return "no cgroup v2 hierarchy is mounted", False
    if not os.access(above, os.W_OK) or not os.access(above / "cgroup.procs", os.W_OK):
        return f"{above} may not be written", False
    have = fs.words(above, "cgroup.controllers")
    missing = [name for name in CONTROLLERS if name not in have]
    if missing:
        return f"{above} may be written, but has no {', '.join(missing)}", False
    is_root = not (above / "cgroup.type").exists()
    if not is_root and set(fs.words(above, "cgroup.procs")) - {str(os.getpid())}:
        return f"{above} may be written, but other processes are in it", False
    return f"{above} may be written, with {', '.join(CONTROLLERS)}", True


def sweep(above: Path, fs: CgroupFs) -> list[str]:
    """Remove the groups of trees whose supervisor was killed.

    Returns:
        Names of the trees that are gone now.
    """
    swept = []
    for path in sorted(above.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # not ours, or a start that gave up just now
            lock_fd = _lock(path)
            if lock_fd is None:
                continue
            groups = TreeGroups(path, lock_fd, fs)
            groups.clear()
            if not path.exists():
                swept.append(path.name.removeprefix(PREFIX))
    return swept


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock of ``folder``; None when a supervisor holds it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _go_without(refusal: str, cpus: Mapping[Role, Sequence[int]], *, is_required: bool) -> None:
    if is_required:
        raise ConfigError(
            "the tree cannot have the control groups that were asked for",
            value=refusal,
            remedy=f"{REMEDY}, or leave out --cgroup and its limits",
        )
    # Where no CPUs are bound little is lost.
    level = logging.WARNING if any(cpus.values()) else logging.INFO
    text = "CPUs are bound by affinity alone: %s. %s; --cgroup false does without"
    logger.log(level, text, refusal, REMEDY)
