"""Shared-memory segments that cannot leak.

A segment is created with a name that is unlinked at once; from then on it is reached only through
its descriptor, which children inherit (``pass_fds``). Its memory is reserved up front with
``posix_fallocate``, so that a full /dev/shm is an error at the start and never a SIGBUS later.
When the last process that holds it is gone, so is the segment, whoever was killed.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from pathlib import Path

import posix_ipc

from hybridgen import fault
from hybridgen.errors import IpcError, SharedMemoryFull
from hybridgen.ipc.header import Header, SegmentKind, read_header, write_header

__all__ = ["SHM_DIR", "Segment", "SegmentKind", "free_shared_memory", "sweep_stale"]

SHM_DIR = Path("/dev/shm")  # noqa: S108  # where Linux keeps POSIX shared memory
_PREFIX = "hybridgen."


class Segment:
    """One mapped segment. Owns its descriptor and its mapping.

    Attributes:
        fd: descriptor to hand to children.
        buf: the mapping, writable.
        geometry: 8 words, meaning by kind.
        epoch: incarnation of the owner, 0 for segments that outlive processes.
    """

    def __init__(self, fd: int, buf: mmap.mmap, header: Header) -> None:
        self.fd = fd
        self.buf = buf
        self.kind = header.kind
        self.geometry = header.geometry
        self.epoch = header.epoch
        self.instance = header.instance
        self.size_bytes = header.size_bytes

    @classmethod
    def create(
        cls,
        kind: SegmentKind,
        size_bytes: int,
        geometry: tuple[int, ...],
        instance: int,
        epoch: int = 0,
    ) -> Segment:
        """Reserve, map and format a new segment, zeroed behind its header.

        Raises:
            SharedMemoryFull: /dev/shm cannot hold it; fields ``need_bytes``, ``have_bytes``.
            IpcError: this process may open or map no more.
        """
        name = f"/{_PREFIX}{os.getpid()}.{secrets.token_hex(8)}"
        try:
            memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
        except OSError as error:
            raise _refused(kind, error) from None
        memory.unlink()
        fd: int = memory.fd
        try:
            _reserve(fd, size_bytes)
            buf = _map(fd, size_bytes, kind)
            header = Header(kind, size_bytes, instance, epoch, geometry)
            write_header(buf, header)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, buf, header)

    @classmethod
    def attach(cls, fd: int, kind: SegmentKind, instance: int | None = None) -> Segment:
        """Map an inherited descriptor and take it over, after a look at its header.

        Raises:
            SegmentMismatch: another kind, version, size or instance; names both. The descriptor
                is left open.
            IpcError: this process may map no more.
        """
        buf = _map(fd, 0, kind)
        try:
            header = read_header(buf, kind, instance)
        except BaseException:
            buf.close()
            raise
        return cls(fd, buf, header)

    def close(self) -> None:
        """Close descriptor and mapping; safe to repeat.

        While a view made from ``buf`` is alive, Python keeps the mapping until that view goes.
        """
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        try:
            self.buf.close()
        except BufferError:
            self.buf = _CLOSED  # drops our reference: the last view takes the mapping with it

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


_CLOSED = mmap.mmap(-1, mmap.PAGESIZE)
_CLOSED.close()


def free_shared_memory() -> int:
    """Bytes that /dev/shm can still take."""
    stat = os.statvfs(SHM_DIR)
    return stat.f_bavail * stat.f_frsize


def sweep_stale() -> list[str]:
    """Remove names left by processes killed between creating a name and unlinking it.

    Returns:
        The names removed; a name whose process still lives is left alone.
    """
    removed = []
    for path in SHM_DIR.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition(".")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def _map(fd: int, size_bytes: int, kind: SegmentKind) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size_bytes)
    except OSError as error:
        raise _refused(kind, error) from None


def _refused(kind: SegmentKind, error: OSError) -> IpcError:
    return IpcError(
        f"a {kind.name.lower()} segment cannot be made or mapped: {error.strerror}",
        remedy="Raise the limit that was hit (ulimit -n, ulimit -v), or make the pools smaller",
        kind=kind.name.lower(),
    )


def _reserve(fd: int, size_bytes: int) -> None:
    try:
        fault.point("segment.create")
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise _full(size_bytes, free_shared_memory()) from None
        raise


def _full(need_bytes: int, have_bytes: int) -> SharedMemoryFull:
    return SharedMemoryFull(
        f"{SHM_DIR} is too small for the shared memory of this configuration",
        value=f"{need_bytes} bytes needed",
        limit=f"{have_bytes} bytes free",
        remedy=(
            "Enlarge it (docker run --shm-size, or mount -o remount,size=…), or lower "
            "--max-num-seqs or --max-model-len"
        ),
        need_bytes=need_bytes,
        have_bytes=have_bytes,
    )
