"""A lock on a file that names its holder and cannot outlive it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hybridgen.errors import AlreadyRunning


class FileLock:
    """``flock`` on a file that holds its owner's pid. The kernel releases it with the process."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path) -> FileLock:
        """Take the lock, creating the file (mode 0600).

        Raises:
            AlreadyRunning: another process holds it; field ``pid``.
        """
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = _read_pid(fd)
                os.close(fd)
                raise _held(path, pid) from None
            if _is_same_file(fd, path):
                break
            os.close(fd)  # its former holder removed it between our open and our lock
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(path, fd)

    def release(self, *, is_removed: bool = False) -> None:
        """Let go, removing the file first if wanted; safe to repeat."""
        if self._fd < 0:
            return
        if is_removed:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        on_disk = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (ours.st_dev, ours.st_ino) == (on_disk.st_dev, on_disk.st_ino)


def _read_pid(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _held(path: Path, pid: int) -> AlreadyRunning:
    return AlreadyRunning(
        f"process {pid} holds {path}",
        value=str(path),
        remedy="Stop it with `hybridgen stop`, or choose another --runtime-dir",
        pid=pid,
    )
