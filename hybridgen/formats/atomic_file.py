"""A file that appears whole or not at all, however many processes make it at once."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hybridgen.errors import ConfigError

_MARK = ".part"
#: A part older than this has no living writer: a running one touches it every second or so.
STALE_S = 3600.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def atomic_file(path: Path, size_bytes: int) -> Iterator[IO[bytes]]:
    """A new file of ``size_bytes`` that is renamed to ``path`` when the block ends well.

    Space is taken before the first byte is written. Each caller writes a part of its own, so two
    processes making the same file are harmless: the later rename wins, with equal content.

    Raises:
        ConfigError: no space, or the folder cannot be written; ``need_bytes``, ``have_bytes``.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_MARK}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(path.parent)
        with open(part, "xb") as file, _removed_on_error(part):
            os.posix_fallocate(file.fileno(), 0, size_bytes)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path.parent, size_bytes, error) from None


@contextlib.contextmanager
def _removed_on_error(part: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove_stale_parts(folder: Path, now_s: float | None = None) -> int:
    """Remove parts whose writer was killed; returns how many."""
    oldest_s = (time.time() if now_s is None else now_s) - STALE_S
    num_removed = 0
    for part in folder.glob(f".*{_MARK}"):
        with contextlib.suppress(FileNotFoundError):  # its writer, or another sweep, was faster
            if part.stat().st_mtime < oldest_s:
                part.unlink()
                num_removed += 1
    return num_removed


def _sync_folder(folder: Path) -> None:
    """Make the rename last over a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _cannot_write(folder: Path, size_bytes: int, error: OSError) -> ConfigError:
    if error.errno in _FULL:
        return ConfigError(
            "no space for the prepared weights",
            param="cache_dir",
            value=str(folder),
            need_bytes=size_bytes,
            have_bytes=_free_bytes(folder),
            remedy=f"Free {size_bytes:,} bytes there, or choose another place with --cache-dir",
        )
    return ConfigError(
        f"the prepared weights cannot be written: {error.strerror}",
        param="cache_dir",
        value=str(folder),
        remedy="Choose a writable place with --cache-dir",
    )


def _free_bytes(folder: Path) -> int | None:
    try:
        space = os.statvfs(folder)
    except OSError:
        return None  # only missing from the error's fields
    return space.f_bavail * space.f_frsize
