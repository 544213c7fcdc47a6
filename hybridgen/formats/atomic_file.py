"""A file that appears whole or not at all, however many processes make it at once.

It is written under a name of its own and renamed at the end. The writer holds a lock (flock) on it,
which the kernel takes away when the writer ends in whatever way: a part without one is rubbish, and
the next writer in that folder removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hybridgen.errors import ConfigError

_PART_NAME = re.compile(r"\..+\.[0-9a-f]{16}\.part")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Purpose(NamedTuple):
    """What is written, for people whom an error concerns."""

    what: str
    option: str
    """The one that says where."""


PREPARED_WEIGHTS = Purpose("the prepared weights", "cache_dir")
OUTPUT = Purpose("the output", "output")


@contextlib.contextmanager
def atomic_file(
    path: Path, size_bytes: int, purpose: Purpose = PREPARED_WEIGHTS, *, is_replacing: bool = True
) -> Iterator[int]:
    """A descriptor of a new file of ``size_bytes``, named ``path`` when the block ends well.

    Space is taken before the first byte is written. Each caller writes a part of its own, so two
    processes making the same file are harmless: the later rename wins, with equal content.

    Args:
        path: of the file.
        size_bytes: of the file.
        purpose: for error texts.
        is_replacing: a file that is there meanwhile is replaced, not kept.

    Raises:
        ConfigError: no space, or the folder cannot be written; ``need_bytes``, ``have_bytes``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(path.parent)
        with _locked_part(path) as (part, fd):
            os.posix_fallocate(fd, 0, size_bytes)
            yield fd
            os.fsync(fd)
            if is_replacing:
                os.replace(part, path)
            else:
                _name_new(part, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path.parent, size_bytes, error, purpose) from None


def check_place(path: Path, size_bytes: int, purpose: Purpose, *, is_replacing: bool) -> None:
    """Can ``atomic_file`` make ``path``? Asked before work is put into it; leaves nothing behind.

    Args:
        path: of the file.
        size_bytes: that it has at least.
        purpose: for error texts.
        is_replacing: a file that is there is to be replaced, not kept.

    Raises:
        ConfigError: it is there and to be kept, cannot be written, or there is no space for it.
    """
    try:
        if _is_there(path):
            if not is_replacing:
                raise already_there(path)
            if path.is_dir() and not path.is_symlink():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = next(parent for parent in path.parents if parent.exists())
        with _locked_part(folder / path.name):
            pass
        space = os.statvfs(folder)
    except OSError as error:
        raise _cannot_write(path, size_bytes, error, purpose) from None
    if space.f_bfree * space.f_frsize < size_bytes:
        raise _cannot_write(folder, size_bytes, OSError(errno.ENOSPC, ""), purpose)


def _is_there(path: Path) -> bool:
    """A link that leads nowhere is there, too; a name that can be nobody's is an ``OSError``."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _name_new(part: Path, path: Path) -> None:
    """Name ``part`` ``path``, which must not be there."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise already_there(path) from None
    except PermissionError:  # a file system without links
        if path.exists():
            raise already_there(path) from None
        os.replace(part, path)


def already_there(path: Path) -> ConfigError:
    """The error about an output that nobody allowed to replace."""
    return ConfigError(
        "the output exists already",
        param="output",
        value=str(path),
        remedy="Add --force to replace it, or choose another --output",
    )


@contextlib.contextmanager
def _locked_part(path: Path) -> Iterator[tuple[Path, int]]:
    """A part that no other process takes for rubbish; its name is gone at the end."""
    part, fd = _new_part(path)
    try:
        yield part, fd
    finally:
        part.unlink(missing_ok=True)
        os.close(fd)


def _new_part(path: Path) -> tuple[Path, int]:
    while True:
        stem = os.fsdecode(os.fsencode(path.name)[:200])  # names have at most 255 bytes
        part = path.with_name(f".{stem}.{secrets.token_hex(8)}.part")
        fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return part, fd
        os.close(fd)  # a sweep came between the two calls and removed it


def remove_stale_parts(folder: Path) -> int:
    """Remove parts whose writers are gone; returns how many."""
    return sum(_remove_if_stale(part) for part in folder.glob(".*.part"))


def _remove_if_stale(part: Path) -> bool:
    if not _PART_NAME.fullmatch(part.name):
        return False
    try:
        fd = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # its writer or another sweep was faster, or it is not ours
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink(missing_ok=True)
    except OSError:  # somebody writes it, or this user may not remove it
        return False
    finally:
        os.close(fd)
    return True


def _sync_folder(folder: Path) -> None:
    """Make the rename last over a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _cannot_write(folder: Path, size_bytes: int, error: OSError, purpose: Purpose) -> ConfigError:
    flag = f"--{purpose.option.replace('_', '-')}"
    if error.errno in _FULL:
        return ConfigError(
            f"no space for {purpose.what}",
            param=purpose.option,
            value=str(folder),
            need_bytes=size_bytes,
            have_bytes=_free_bytes(folder),
            remedy=f"Free {size_bytes:,} bytes there, or choose another place with {flag}",
        )
    is_blocked = isinstance(error, FileExistsError)
    reason = "a file stands where a folder is needed" if is_blocked else error.strerror
    return ConfigError(
        f"{purpose.what} cannot be written: {reason}",
        param=purpose.option,
        value=str(folder),
        remedy=f"Choose a writable place with {flag}",
    )


def _free_bytes(folder: Path) -> int | None:
    try:
        space = os.statvfs(folder)
    except OSError:
        return None  # only missing from the error's fields
    return space.f_bavail * space.f_frsize
