from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridgen.errors import ConfigError
from hybridgen.formats.atomic_file import OUTPUT, atomic_file, check_place, remove_stale_parts


def write(path: Path, content: bytes, *, is_replacing: bool = True) -> None:
    with atomic_file(path, len(content), is_replacing=is_replacing) as fd:
        os.pwrite(fd, content, 0)


def test_the_file_appears_only_when_the_block_ends_well(tmp_path: Path):
    path = tmp_path / "deep" / "file"
    with atomic_file(path, 3) as fd:
        os.pwrite(fd, b"abc", 0)
        assert not path.exists()
    assert path.read_bytes() == b"abc"

    def broken() -> None:
        with atomic_file(path, 3) as fd:
            os.pwrite(fd, b"xyz", 0)
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert path.read_bytes() == b"abc"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_parts_of_killed_writers_are_swept_and_others_kept(tmp_path: Path):
    dead, other = tmp_path / f".a.{'0' * 16}.part", tmp_path / ".b.part"
    for path in (dead, other):
        path.write_bytes(b"x")
    with atomic_file(tmp_path / "file", 1) as fd:
        os.pwrite(fd, b"1", 0)
        assert not dead.exists()
        assert remove_stale_parts(tmp_path) == 0  # its own is locked
        assert len(list(tmp_path.iterdir())) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.part", "file"]


def test_the_lock_ends_with_its_process(tmp_path: Path):
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from hybridgen.formats.atomic_file import atomic_file\n"
        "with atomic_file(Path(sys.argv[1]), 10): os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "file")]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    assert remove_stale_parts(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_a_sweep_took_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock, calls = fcntl.flock, []

    def swept_first(fd: int, operation: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            os.unlink(os.readlink(f"/proc/self/fd/{fd}"))
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", swept_first)
    write(tmp_path / "file", b"abc")
    assert len(calls) == 2
    assert (tmp_path / "file").read_bytes() == b"abc"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_came_meanwhile_is_kept_unless_it_may_be_replaced(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"theirs")
    with pytest.raises(ConfigError, match="exists already") as caught:
        write(path, b"ours", is_replacing=False)
    assert "--force" in str(caught.value.fields["remedy"])
    assert path.read_bytes() == b"theirs"
    assert len(list(tmp_path.iterdir())) == 1
    write(path, b"ours")
    assert path.read_bytes() == b"ours"


def test_an_impossible_size_is_a_typed_error(tmp_path: Path):
    def fill() -> None:
        with atomic_file(tmp_path / "file", 2**60, OUTPUT):
            pass

    with pytest.raises(ConfigError, match="no space for the output") as caught:
        fill()
    fields = caught.value.fields
    assert fields["need_bytes"] == 2**60
    assert int(str(fields["have_bytes"])) > 0
    assert "--output" in str(fields["remedy"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("folder", "Is a directory"),
        ("file/x", "Not a directory"),
        ("n" * 256, "File name too long"),
        ("loop/x", "Too many levels"),
    ],
)
def test_a_place_that_cannot_be_is_told_before_the_work(name: str, problem: str, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=problem) as caught:
        check_place(tmp_path / name, 0, OUTPUT, is_replacing=True)
    assert caught.value.fields["value"] == str(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_there_is_kept_even_a_link_to_nowhere(tmp_path: Path):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="exists already"):
        check_place(tmp_path / "link", 0, OUTPUT, is_replacing=False)
    check_place(tmp_path / "link", 0, OUTPUT, is_replacing=True)


def test_a_place_that_can_be_is_left_as_it_was(tmp_path: Path):
    check_place(tmp_path / "new" / "deep" / "file", 1, OUTPUT, is_replacing=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="no space for the output") as caught:
        check_place(tmp_path / "new" / "file", 2**60, OUTPUT, is_replacing=False)
    assert caught.value.fields["need_bytes"] == 2**60
    assert int(str(caught.value.fields["have_bytes"])) > 0


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def denied(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ConfigError, match="Permission denied"):
        check_place(tmp_path / "file", 0, OUTPUT, is_replacing=True)


@pytest.mark.parametrize("name", ["n" * 255, "\u00fc" * 127, "\U0001f642" * 63])
def test_the_longest_names_are_written(name: str, tmp_path: Path):
    write(tmp_path / name, b"abc")
    assert (tmp_path / name).read_bytes() == b"abc"
