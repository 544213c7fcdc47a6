from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridgen.config import Config
from hybridgen.errors import ConfigError
from hybridgen.formats import weights_cache
from hybridgen.formats.convert import convert_model, prepare_weights
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.weights_cache import (
    cache_path,
    check_cache,
    default_cache_dir,
    source_identity,
)
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


def test_weights_that_are_there_need_no_place(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def read_only(path: Path, *_arguments: object, **_options: object) -> None:
        raise ConfigError("cannot be written", value=str(path))

    monkeypatch.setattr(weights_cache, "check_place", read_only)
    info = inspect_model(str(tiny.gguf), Config())
    path = prepare_weights(info, "bfloat16", tmp_path)
    assert check_cache(info, "bfloat16", tmp_path) == path
    with pytest.raises(ConfigError, match="cannot be written"):
        check_cache(info, "float16", tmp_path)  # is made from float32
    path.write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_cache(info, "bfloat16", tmp_path)
    own = convert_model(info, "bfloat16", tmp_path / "own.hybridgen")
    assert check_cache(inspect_model(str(own), Config()), "bfloat16", tmp_path) is None
