"""Segments: created, handed on by descriptor, and gone with their last holder."""

from __future__ import annotations

import os
import subprocess
import sys

import posix_ipc
import pytest

from hybridgen.errors import SegmentMismatch, SharedMemoryFull
from hybridgen.ipc import segment
from hybridgen.ipc.segment import Segment, SegmentKind
from hybridgen.ipc.token_store import TokenStore

SIZE_BYTES = TokenStore.size_bytes(4, 64)
GEOMETRY = TokenStore.make_geometry(4, 64)


def make(instance: int = 9, epoch: int = 0) -> Segment:
    return Segment.create(SegmentKind.TOKENS, SIZE_BYTES, GEOMETRY, instance, epoch)


def test_a_new_segment_has_no_name_and_is_private_and_reserved() -> None:
    before = os.listdir(segment.SHM_DIR)
    with make() as created:
        assert os.listdir(segment.SHM_DIR) == before
        status = os.fstat(created.fd)
        assert status.st_mode & 0o777 == 0o600
        assert status.st_blocks * 512 >= SIZE_BYTES == status.st_size
        assert not os.get_inheritable(created.fd)


def test_an_attached_segment_is_the_same_memory() -> None:
    with (
        make(epoch=5) as created,
        Segment.attach(os.dup(created.fd), SegmentKind.TOKENS, instance=9) as attached,
    ):
        created.buf[4096:4100] = b"abcd"
        assert attached.buf[4096:4100] == b"abcd"
        assert attached.geometry[:2] == GEOMETRY
        assert attached.epoch == 5


def test_attach_refuses_another_kind_and_another_instance_and_keeps_the_descriptor() -> None:
    with make() as created:
        with pytest.raises(SegmentMismatch, match="kind"):
            Segment.attach(created.fd, SegmentKind.SLOTS)
        with pytest.raises(SegmentMismatch, match="instance"):
            Segment.attach(created.fd, SegmentKind.TOKENS, instance=10)
        os.fstat(created.fd)


def test_close_twice_and_with_a_living_view_is_harmless() -> None:
    created = make()
    row = TokenStore(created.buf).row(1)
    created.close()
    created.close()
    row[0] = 7
    assert row[0] == 7


def test_a_segment_larger_than_the_free_space_is_refused_with_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_space(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(SharedMemoryFull) as caught:
        make()
    assert caught.value.fields["need_bytes"] == SIZE_BYTES
    assert caught.value.fields["have_bytes"]
    assert "shm-size" in str(caught.value)


def test_names_of_dead_processes_are_swept_and_those_of_living_ones_kept() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait(10)
    names = {pid: f"hybridgen.{pid}.0123" for pid in (dead.pid, os.getpid())}
    for name in names.values():
        posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX).close_fd()
    try:
        assert names[dead.pid] in segment.sweep_stale()
        assert (segment.SHM_DIR / names[os.getpid()]).exists()
        assert not (segment.SHM_DIR / names[dead.pid]).exists()
    finally:
        posix_ipc.unlink_shared_memory(f"/{names[os.getpid()]}")
