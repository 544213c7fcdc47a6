from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridgen.config import Config
from hybridgen.errors import ConfigError
from hybridgen.formats.atomic_file import STALE_S, atomic_file, remove_stale_parts
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.weights_cache import cache_path, default_cache_dir, source_identity
from tools.make_tiny_model import TinyModel


def test_the_cache_lies_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == Path("/home/someone/.cache/hybridgen")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir() == Path("/home/someone/.cache/hybridgen")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "hybridgen"
    assert default_cache_dir("/elsewhere") == Path("/elsewhere")
    assert default_cache_dir("~/mine") == Path("/home/someone/mine")


def test_identity_follows_the_content_and_not_the_place(tiny: TinyModel, tmp_path: Path):
    copy = tmp_path / tiny.gguf.name
    copy.write_bytes(tiny.gguf.read_bytes())
    times = tiny.gguf.stat()
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    first = source_identity(inspect_model(str(tiny.gguf), Config()))
    info = inspect_model(str(copy), Config())
    assert source_identity(info) == first
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert source_identity(info) != first


def test_the_file_name_is_harmless(tiny: TinyModel, tmp_path: Path):
    odd = tmp_path / "a b;$(x)\n.gguf"
    odd.symlink_to(tiny.gguf)
    info = inspect_model(str(odd), Config())
    path = cache_path(info, "float32", "f" * 32, tmp_path)
    assert path.parent == tmp_path
    assert all(character.isalnum() or character in "-_." for character in path.name)


def test_the_file_appears_only_when_the_block_ends_well(tmp_path: Path):
    path = tmp_path / "deep" / "file"
    with atomic_file(path, 3) as file:
        file.write(b"abc")
        assert not path.exists()
    assert path.read_bytes() == b"abc"

    def broken() -> None:
        with atomic_file(path, 3) as file:
            file.write(b"xyz")
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert path.read_bytes() == b"abc"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_parts_of_killed_writers_are_swept_and_others_kept(tmp_path: Path):
    old, fresh, other = tmp_path / ".a.1.part", tmp_path / ".b.2.part", tmp_path / "c.hybridgen"
    for path in (old, fresh, other):
        path.write_bytes(b"x")
    now_s = fresh.stat().st_mtime
    os.utime(old, (now_s - STALE_S - 1, now_s - STALE_S - 1))
    os.utime(other, (0, 0))
    assert remove_stale_parts(tmp_path, now_s) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.2.part", "c.hybridgen"]


def test_an_impossible_size_is_a_typed_error(tmp_path: Path):
    def fill() -> None:
        with atomic_file(tmp_path / "file", 2**60):
            pass

    with pytest.raises(ConfigError, match="no space") as caught:
        fill()
    assert caught.value.fields["need_bytes"] == 2**60
    assert list(tmp_path.iterdir()) == []
