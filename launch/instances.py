"""Which trees of this user run: what `ps`, `stop` and `chat` find without being told.

A tree has its runtime directory under the user's base, or a link there when --runtime-dir put it
elsewhere. The lock in it says whether its supervisor lives; entries of dead ones are removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from hybridgen.errors import ConfigError, PeerGone
from hybridgen.ipc.runtime_dir import RuntimeDir, base_dir, instance_path, parse_target

INSTANCE_DIGITS = 8
#: Younger entries without a holder may belong to a start.
SWEEP_AGE_S = 10.0


def register(runtime: RuntimeDir, instance: str) -> None:
    """Make a tree with a runtime directory of its own choice findable."""
    entry = instance_path(instance)
    if entry != runtime.path:
        entry.symlink_to(runtime.path)


def unregister(instance: str) -> None:
    """Remove the link of a tree that ends; its directory is its own matter."""
    entry = instance_path(instance)
    if entry.is_symlink():
        entry.unlink()


def running() -> list[Path]:
    """Runtime directories of all trees of this user, after stale entries were removed."""
    found: list[Path] = []
    any_instance = instance_path("[0-9a-f]" * INSTANCE_DIGITS).name
    for entry in sorted(base_dir().glob(any_instance)):
        if is_alive(entry):
            found.append(entry.resolve())
        else:
            with contextlib.suppress(FileNotFoundError):  # its tree removed it just now
                _sweep(entry)
    return found


def _sweep(entry: Path) -> None:
    if not _is_old(entry):
        return
    if entry.is_symlink():
        entry.unlink()
    elif entry.is_dir() and entry.stat().st_uid == os.geteuid():
        shutil.rmtree(entry, ignore_errors=True)


def is_alive(path: Path) -> bool:
    """A supervisor holds the lock of this runtime directory.

    Only looks: trying the lock would get in the way of a supervisor that is just taking it.
    """
    try:
        lock_file = path / "lock"
        pid, inode = lock_file.read_text(encoding="ascii").strip(), lock_file.stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):  # no tree, or another user's
        return False
    # "1: FLOCK  ADVISORY  WRITE <pid> <major>:<minor>:<inode> 0 EOF"
    held = {(words[4], words[5].rpartition(":")[2]) for words in map(str.split, locks)}
    return (pid, str(inode)) in held


def _is_old(path: Path) -> bool:
    """No start is under way there: between making a directory and locking it lie microseconds."""
    return time.time() - path.lstat().st_mtime > SWEEP_AGE_S


def find(uri: str | None) -> Path:
    """The runtime directory of ``uri``, or of the only tree that runs.

    Raises:
        PeerGone: no tree runs, or not there.
        ConfigError: several run and none was named.
    """
    if uri is not None:
        return RuntimeDir.open(parse_target(uri)).path
    trees = running()
    if not trees:
        raise PeerGone("no tree is running", remedy="Start one with `hybridgen serve MODEL`")
    if len(trees) > 1:
        raise ConfigError(
            "more than one tree is running",
            value=", ".join(f"hybridgen://{path}" for path in trees),
            remedy="Name one with --uri",
        )
    return trees[0]
