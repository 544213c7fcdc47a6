"""Segment headers: what is verified before anybody touches a record."""

from __future__ import annotations

import struct

import pytest

from hybridgen.errors import SegmentMismatch
from hybridgen.ipc import header
from hybridgen.ipc.header import RECORDS_OFFSET, Header, SegmentKind


def formatted(size_bytes: int = 8192) -> bytearray:
    buf = bytearray(size_bytes)
    header.write_header(buf, Header(SegmentKind.TOKENS, size_bytes, 77, 3, (5, 6)))
    return buf


def test_a_header_reads_back_as_written() -> None:
    read = header.read_header(formatted(), SegmentKind.TOKENS, instance=77)
    assert read == Header(SegmentKind.TOKENS, 8192, 77, 3, (5, 6, 0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("word", "what"), [(0, "magic number"), (1, "layout version"), (2, "kind"), (3, "size")]
)
def test_another_word_is_refused_and_both_values_are_named(word: int, what: str) -> None:
    buf = formatted()
    struct.pack_into("=Q", buf, word * 8, 123_456)
    with pytest.raises(SegmentMismatch, match=what) as caught:
        header.read_header(buf, SegmentKind.TOKENS)
    assert "123456" in f"{caught.value.fields['value']} {caught.value.fields['limit']}"


def test_another_instance_is_refused_when_one_is_asked_for() -> None:
    with pytest.raises(SegmentMismatch, match="instance") as caught:
        header.read_header(formatted(), SegmentKind.TOKENS, instance=78)
    assert (caught.value.fields["value"], caught.value.fields["limit"]) == (77, 78)


def test_a_buffer_without_room_for_a_header_is_refused() -> None:
    with pytest.raises(SegmentMismatch, match="size"):
        header.read_header(bytearray(RECORDS_OFFSET - 1), SegmentKind.TOKENS)


def test_too_much_geometry_is_refused() -> None:
    with pytest.raises(ValueError, match="geometry"):
        header.write_header(bytearray(4096), Header(SegmentKind.RING, 4096, 0, 0, (1,) * 9))


@pytest.mark.parametrize("geometry", [(0, 5), (5, 0)])
def test_a_geometry_with_a_zero_is_refused(geometry: tuple[int, int]) -> None:
    with pytest.raises(SegmentMismatch, match="geometry"):
        header.check_geometry(bytearray(4096), SegmentKind.TOKENS, geometry, 0)
