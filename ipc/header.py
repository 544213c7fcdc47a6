"""The header that starts every segment.

::

    byte 0     magic · layout_version · kind · size_bytes · instance · epoch · 2 reserved
    byte 64    geometry[8], meaning by kind (see the view of each)
    byte 128   words of the kind's own (logits: latest; ring: head and tail)
    byte 4096  records

Writer: the supervisor, before anybody else can see the segment. ``magic`` is stored last.
"""

from __future__ import annotations

import enum
import mmap
import struct
from typing import NamedTuple

from hybridgen.errors import SegmentMismatch
from hybridgen.ipc import _native

MAGIC = 0x4E47444952425948  # "HYBRIDGN"
LAYOUT_VERSION = 1
RECORDS_OFFSET = 4096
POISON = 2**64 - 1
"""In a waited-on word: stop waiting, this segment is retired."""

Memory = mmap.mmap | bytearray | memoryview
"""What a view can lie over: a mapped segment, or private memory in tests."""

_FORMAT = struct.Struct("=16Q")
_MAX_GEOMETRY = 8


class SegmentKind(enum.IntEnum):
    """What a segment holds."""

    SLOTS = 1
    TOKENS = 2
    LOGITS = 3
    SAMPLED = 4
    LOGPROBS = 5
    BOARD = 6
    RING = 7


class Header(NamedTuple):
    """A verified header."""

    kind: SegmentKind
    size_bytes: int
    instance: int
    epoch: int
    geometry: tuple[int, ...]


def write_header(buf: Memory, header: Header) -> None:
    """Format the first 128 bytes of ``buf``, the magic number last.

    Raises:
        ValueError: more than 8 geometry words.
    """
    if len(header.geometry) > _MAX_GEOMETRY:
        raise ValueError(f"a header holds {_MAX_GEOMETRY} geometry words: {header.geometry}")
    padding = (0,) * (_MAX_GEOMETRY - len(header.geometry))
    fields = (LAYOUT_VERSION, header.kind, header.size_bytes, header.instance, header.epoch)
    _FORMAT.pack_into(memoryview(buf), 0, 0, *fields, 0, 0, *header.geometry, *padding)
    _native.store(buf, 0, MAGIC)


def read_header(buf: Memory, kind: SegmentKind, instance: int | None = None) -> Header:
    """The header of ``buf``, checked against what the caller expects.

    Raises:
        SegmentMismatch: naming both sides of the first difference.
    """
    with memoryview(buf) as view:
        have_bytes = view.nbytes
        if have_bytes < RECORDS_OFFSET:
            raise _mismatch("size in bytes", have_bytes, f"at least {RECORDS_OFFSET}", kind)
        words = _FORMAT.unpack_from(view, 0)
    magic, version, have_kind, size_bytes, have_instance, epoch = words[:6]
    checks = (
        ("magic number", magic, MAGIC),
        ("layout version", version, LAYOUT_VERSION),
        ("kind", have_kind, kind),
        ("instance", have_instance, have_instance if instance is None else instance),
    )
    for what, have, want in checks:
        if have != want:
            raise _mismatch(what, have, want, kind)
    if size_bytes > have_bytes:
        raise _mismatch("size in bytes", have_bytes, size_bytes, kind)
    return Header(SegmentKind(have_kind), size_bytes, have_instance, epoch, words[8:])


def read_geometry(buf: Memory, kind: SegmentKind, num_words: int) -> tuple[int, ...]:
    """The first ``num_words`` geometry words of a verified header."""
    return read_header(buf, kind).geometry[:num_words]


def check_geometry(
    buf: Memory, kind: SegmentKind, geometry: tuple[int, ...], need_bytes: int
) -> None:
    """Refuse a geometry with a zero in it, or one that needs more bytes than there are.

    Raises:
        SegmentMismatch: naming the geometry or both sizes.
    """
    with memoryview(buf) as view:
        have_bytes = view.nbytes
    if min(geometry) < 1:
        raise _mismatch("geometry", str(geometry), "positive numbers", kind)
    if have_bytes < need_bytes:
        raise _mismatch("size in bytes", have_bytes, need_bytes, kind)


def in_memory(kind: SegmentKind, size_bytes: int, geometry: tuple[int, ...]) -> bytearray:
    """A private, zeroed buffer with a header, for pure tests and simulations."""
    buf = bytearray(size_bytes)
    write_header(buf, Header(kind, size_bytes, 0, 0, geometry))
    return buf


def round_up(num_bytes: int, unit: int) -> int:
    """``num_bytes`` rounded up to a multiple of ``unit``."""
    return -(-num_bytes // unit) * unit


def _mismatch(what: str, have: int | str, want: int | str, kind: SegmentKind) -> SegmentMismatch:
    return SegmentMismatch(
        f"a {kind.name.lower()} segment has another {what} than expected",
        value=have,
        limit=want,
        remedy="Start all processes of the tree from the same installation",
        kind=kind.name.lower(),
    )
