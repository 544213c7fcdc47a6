"""Which CPUs each tree of this user has claimed, so that two trees do not take each other's.

A claim is a file in the tree's runtime directory and counts while its supervisor lives. It is
made only if nobody made another since the look that it is based on; a lock, held for that
moment, orders trees that start together.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hybridgen.errors import ConfigError
from hybridgen.ipc.runtime_dir import base_dir
from hybridgen.launch import instances
from hybridgen.launch.placement import format_cpus, parse_cpus

_CLAIM_FILE = "cpus"


def claimed_by_others(own: Path) -> frozenset[int]:
    """CPUs claimed by all live trees but the one with runtime directory ``own``."""
    claimed: set[int] = set()
    for tree in instances.running():
        if tree != own.resolve():
            claimed.update(_read(tree))
    return frozenset(claimed)


def claim(own: Path, cpus: Sequence[int], seen: frozenset[int]) -> bool:
    """Claim ``cpus`` for the tree in ``own``.

    Args:
        own: its runtime directory.
        cpus: what it wants to have for itself; may be none.
        seen: what ``claimed_by_others`` said when they were chosen.

    Returns:
        False, and nothing is claimed, when others have claimed something else meanwhile.

    Raises:
        ConfigError: the lock cannot be had, since it is another user's.
    """
    if not cpus:
        return claimed_by_others(own) == seen
    with _alone():
        if claimed_by_others(own) != seen:
            return False
        (own / _CLAIM_FILE).write_text(f"{format_cpus(cpus)}\n", encoding="ascii")
        return True


def release(own: Path) -> None:
    """Let others have them; safe to repeat."""
    (own / _CLAIM_FILE).unlink(missing_ok=True)


def _read(tree: Path) -> list[int]:
    try:
        return parse_cpus((tree / _CLAIM_FILE).read_text(encoding="ascii").strip())
    except (OSError, ValueError):  # no claim, or no tree any more
        return []


@contextmanager
def _alone() -> Iterator[None]:
    path = base_dir() / f"hybridgen-{os.geteuid()}.cpus.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"CPUs cannot be claimed: {error.strerror}",
            value=str(path),
            remedy="Set XDG_RUNTIME_DIR to a directory of yours, or use --disable-cpu-affinity",
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)  # and with it the lock
