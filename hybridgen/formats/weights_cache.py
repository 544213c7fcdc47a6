"""Where prepared weights are kept, and when one of them may be used again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hybridgen.errors import ModelError
from hybridgen.formats.atomic_file import PREPARED_WEIGHTS, check_place
from hybridgen.formats.huggingface import source_files
from hybridgen.formats.hybridgen_file import (
    SUFFIX,
    VERSION,
    DtypeName,
    read_hybridgen,
    stored_tensors,
)
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.model_info import ModelInfo

#: Raise when the same source would give other weights or another tokenizer than before.
CONVERTER_VERSION = 2
_SAMPLE_BYTES = 65_536


def default_cache_dir(cache_dir: str | Path = "") -> Path:
    """``cache_dir`` if given, else $XDG_CACHE_HOME/hybridgen, else ~/.cache/hybridgen."""
    if cache_dir:
        return Path(cache_dir).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative XDG_CACHE_HOME is to be ignored (XDG Base Directory Specification).
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "hybridgen"


def source_identity(info: ModelInfo) -> str:
    """Hex digest that changes when the source's files do.

    Covers each file's name, size, time of change and first and last 64 KiB, besides the versions
    of format and converter. Reading whole files would cost more than the conversion saves.
    """
    digest = hashlib.sha256(f"{VERSION}/{CONVERTER_VERSION}".encode())
    for path in source_paths(info):
        _add_file(digest, path)
    return digest.hexdigest()[:32]


def source_paths(info: ModelInfo) -> list[Path]:
    """Every file that the weights and the tokenizer of ``info`` come from."""
    path = Path(info.path)
    return source_files(path) if info.kind == "huggingface" else [path]


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            digest.update(f"\n{path.name}/{status.st_size}/{status.st_mtime_ns}/".encode())
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, status.st_size - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise bad_field(path, "path", f"cannot be read: {error.strerror}", str(path)) from None


def cache_path(info: ModelInfo, dtype: DtypeName, source: str, cache_dir: Path) -> Path:
    """The file that holds ``info``'s weights in ``dtype``."""
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(info.path).stem)[:64]
    return cache_dir / f"{stem}-{dtype}-{source[:16]}{SUFFIX}"


def check_cache(info: ModelInfo, dtype: str, cache_dir: str | Path) -> Path | None:
    """Where the weights of ``info`` are kept, or would be; None if it needs no cache.

    Args:
        info: the model.
        dtype: that it is served in; the cache has float32 for everything but bfloat16.
        cache_dir: see ``default_cache_dir``.

    Raises:
        ConfigError: they are not there, and cannot be written.
    """
    if info.kind not in ("gguf", "huggingface"):
        return None
    stored: DtypeName = "bfloat16" if dtype == "bfloat16" else "float32"
    identity = source_identity(info)
    path = cache_path(info, stored, identity, default_cache_dir(cache_dir))
    if not is_usable(path, info, stored, identity):
        tensors = stored_tensors(info.config, stored, is_int8=False)
        num_bytes = sum(tensor.num_bytes for tensor in tensors.values())
        check_place(path, num_bytes, PREPARED_WEIGHTS, is_replacing=True)
    return path


def is_usable(path: Path, info: ModelInfo, dtype: DtypeName, source: str) -> bool:
    """Whether ``path`` is whole and was made from this source; anything else is made again."""
    if not path.exists():
        return False
    try:
        cached = read_hybridgen(path)
    except ModelError:
        return False  # damaged: the caller replaces it
    is_same = cached.dtype == dtype and not cached.is_int8 and cached.source.identity == source
    return is_same and cached.info.config == info.config
