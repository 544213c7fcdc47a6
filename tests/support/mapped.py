"""Maps an inherited segment without posix_ipc: children that must start fast."""

from __future__ import annotations

import mmap

from hybridgen.ipc.header import SegmentKind, read_header


def map_inherited(fd: int, kind: SegmentKind) -> mmap.mmap:
    """The verified mapping of an inherited descriptor."""
    buf = mmap.mmap(fd, 0)
    read_header(buf, kind)
    return buf
