"""A ring of fixed-size records from one process to one other, in native code.

::

    byte 128    head: records pushed so far     written by the producer
    byte 192    tail: records popped so far     written by the consumer
    byte 4096   record[num_records]             record n lies at n % num_records

Records between tail and head are filled, the others free. Order of stores: the producer writes
records, then ``head``; the consumer copies records, then stores ``tail``. So a producer killed
while it writes leaves nothing half visible, and a consumer killed while it copies leaves the same
records to its replacement: at least once, never torn.
"""

from __future__ import annotations

from hybridgen import fault
from hybridgen.errors import InternalError, RingFull
from hybridgen.ipc import _native, header
from hybridgen.ipc.header import RECORDS_OFFSET, Memory, SegmentKind

_HEAD_OFFSET = 128
_TAIL_OFFSET = 192


class RecordRing:
    """Typed view of a ring segment: one process pushes, one pops.

    Attributes:
        num_records: records that fit; a power of two.
        record_bytes: size of each.
    """

    def __init__(self, buf: Memory) -> None:
        geometry = header.read_geometry(buf, SegmentKind.RING, 2)
        self.num_records, self.record_bytes = geometry
        need_bytes = self.size_bytes(self.num_records, self.record_bytes)
        header.check_geometry(buf, SegmentKind.RING, geometry, need_bytes)
        self.buf = buf

    @staticmethod
    def size_bytes(num_records: int, record_bytes: int) -> int:
        """Bytes of the whole segment."""
        return RECORDS_OFFSET + num_records * record_bytes

    @staticmethod
    def make_geometry(num_records: int, record_bytes: int) -> tuple[int, ...]:
        """Geometry words of the header.

        Raises:
            InternalError: num_records is no power of two.
        """
        if num_records < 1 or num_records & (num_records - 1):
            raise InternalError("a ring needs a power of two of records", value=num_records)
        return (num_records, record_bytes)

    @classmethod
    def in_memory(cls, num_records: int, record_bytes: int) -> RecordRing:
        """A ring over private memory."""
        geometry = cls.make_geometry(num_records, record_bytes)
        size_bytes = cls.size_bytes(num_records, record_bytes)
        return cls(header.in_memory(SegmentKind.RING, size_bytes, geometry))

    @property
    def num_filled(self) -> int:
        """Records pushed and not yet popped."""
        return _native.load(self.buf, _HEAD_OFFSET) - _native.load(self.buf, _TAIL_OFFSET)

    def push(self, records: bytes | bytearray | memoryview) -> int:
        """Push as many whole records as fit.

        Returns:
            How many; the caller keeps the rest.
        """
        num_pushed = _native.ring_push(self.buf, records)
        fault.point("ring.commit")  # before whoever waits is woken
        return num_pushed

    def push_all(self, records: bytes | bytearray | memoryview) -> None:
        """Push records of which all must fit.

        Raises:
            RingFull: none of them was pushed.
        """
        num_offered = len(records) // self.record_bytes
        num_free = self.num_records - self.num_filled
        if num_offered > num_free:
            raise RingFull("a ring has too little room", value=num_offered, limit=num_free)
        self.push(records)

    def pop(self, max_records: int) -> bytes:
        """The oldest records back to back, at most ``max_records``; empty when there is none."""
        return _native.ring_pop(self.buf, max_records)

    def wake_consumer(self) -> None:
        """Wake a consumer that sleeps in ``wait_filled``."""
        _native.wake(self.buf, _HEAD_OFFSET)

    def wake_producer(self) -> None:
        """Wake a producer that sleeps in ``wait_room``."""
        _native.wake(self.buf, _TAIL_OFFSET)

    def wait_filled(self, spin_us: int, timeout_us: int) -> bool:
        """Consumer: wait for a record, at most ``timeout_us``.

        Returns:
            Whether there is one. A late wake-up or a signal may end the wait early: loop.
        """
        tail = _native.load(self.buf, _TAIL_OFFSET)
        return _native.wait(self.buf, _HEAD_OFFSET, tail, spin_us, timeout_us) != tail

    def wait_room(self, spin_us: int, timeout_us: int) -> bool:
        """Producer: wait until a full ring has room, at most ``timeout_us``.

        Returns:
            Whether there is room. A late wake-up or a signal may end the wait early: loop.
        """
        full_tail = _native.load(self.buf, _HEAD_OFFSET) - self.num_records
        if full_tail < 0:
            return True
        return _native.wait(self.buf, _TAIL_OFFSET, full_tail, spin_us, timeout_us) != full_tail
