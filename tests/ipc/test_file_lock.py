"""File locks: one holder, named by its pid, released with its process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridgen.errors import AlreadyRunning
from hybridgen.ipc.file_lock import FileLock


def test_a_held_lock_is_refused_and_a_released_one_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = FileLock.acquire(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(AlreadyRunning) as caught:
        FileLock.acquire(path)
    assert caught.value.fields["pid"] == os.getpid()
    held.release()
    held.release()
    FileLock.acquire(path).release(is_removed=True)
    assert not path.exists()


def test_a_file_that_its_holder_removed_is_not_mistaken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    real_open = os.open
    opened: list[int] = []

    def open_then_lose(*args: object) -> int:
        fd = real_open(*args)  # type: ignore[arg-type]
        if not opened:
            path.unlink()
        opened.append(fd)
        return fd

    monkeypatch.setattr(os, "open", open_then_lose)
    lock = FileLock.acquire(path)
    assert len(opened) == 2
    assert path.stat().st_ino == os.fstat(opened[-1]).st_ino
    lock.release()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock.acquire(tmp_path / "lock")
    assert not (tmp_path / "victim").exists()
