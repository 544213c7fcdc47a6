"""Is every byte of a ``.hybridgen`` file what its maker wrote? Torch-free."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hybridgen.errors import BadModelFile
from hybridgen.formats.hybridgen_file import header_digest, read_hybridgen
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.model_info import ModelInfo

MAX_THREADS = 8
_PIECE_BYTES = 1 << 22


def verify_file(path: Path) -> ModelInfo:
    """Read ``path`` and compare header and tensors with their SHA-256.

    Raises:
        BadModelFile: naming what differs, found and expected.
        UnsupportedModel, WeightsMismatch: see ``read_hybridgen``.
    """
    file = read_hybridgen(path)
    start = file.header.data_start
    expected, found = file.header.metadata.get("header_sha256", ""), _header_sha256(path, start)
    if found != expected:
        raise _differs(path, "header", found, expected)
    places = {
        name: (start + tensor.data_offsets[0], start + tensor.data_offsets[1])
        for name, tensor in file.header.tensors.items()
    }
    with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0))), "verify") as pool:
        digests = pool.map(lambda place: range_sha256(path, *place), places.values())
        damaged = [
            (name, digest)
            for name, digest in zip(places, digests, strict=True)
            if digest != file.sha256[name]
        ]
    for name, digest in damaged:
        raise _differs(path, name, digest, file.sha256[name], num_damaged=len(damaged))
    return file.info


def file_sha256(path: Path, check: Callable[[], None] = lambda: None) -> str:
    """SHA-256 of a whole file; ``check`` may raise between two pieces.

    Raises:
        BadModelFile: it cannot be read.
    """
    return range_sha256(path, 0, None, check)


def range_sha256(
    path: Path, begin: int, end: int | None, check: Callable[[], None] = lambda: None
) -> str:
    """SHA-256 of the bytes from ``begin`` to ``end``, or to the end of the file.

    Raises:
        BadModelFile: they cannot be read.
    """
    digest, piece = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES))
    try:
        with open(path, "rb", buffering=0) as file:
            place = file.seek(begin)
            while end is None or place < end:
                check()
                size = _PIECE_BYTES if end is None else min(_PIECE_BYTES, end - place)
                count = file.readinto(piece[:size])
                if not count:
                    break
                digest.update(piece[:count])
                place += count
    except OSError as error:
        raise bad_field(path, "path", f"cannot be read: {error.strerror}", str(path)) from None
    return digest.hexdigest()


def _header_sha256(path: Path, num_bytes: int) -> str:
    with open(path, "rb") as file:
        return header_digest(file.read(num_bytes))[1]


def _differs(path: Path, name: str, found: str, expected: str, **fields: int) -> BadModelFile:
    return BadModelFile(
        f"{name} of {path.name} is not what was written",
        field=name,
        value=f"SHA-256 {found or 'none'}",
        limit=f"SHA-256 {expected or 'of the header, which is missing'}",
        remedy="The file is damaged; fetch or convert it again",
        file=str(path),
        **fields,
    )
