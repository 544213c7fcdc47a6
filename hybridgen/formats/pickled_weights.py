"""Weights stored with pickle: recognized, and refused by name."""

from __future__ import annotations

from pathlib import Path

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.model_file import bad_field

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
#: How what torch.save writes begins: a zip archive, or a pickle of protocol 2 and later.
_MAGICS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def is_pickled(path: Path, leading: bytes) -> bool:
    """Whether the file at ``path``, which begins with ``leading``, is such a file."""
    return path.suffix in _SUFFIXES or leading.startswith(_MAGICS)


def pickled_in(folder: Path) -> Path | None:
    """The first such file of ``folder``, by its name; None if there is none.

    Raises:
        BadModelFile: the folder cannot be listed.
    """
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise bad_field(folder, "path", f"cannot be read: {error.strerror}", str(folder)) from None
    return next((path for path in paths if path.suffix in _SUFFIXES), None)


def pickle_refused(path: Path) -> UnsupportedModel:
    """The error for the file at ``path``."""
    return UnsupportedModel(
        "weights stored with pickle are not read: unpickling a file can run any code in it",
        field="model",
        value=path.name,
        limit="*.safetensors, *.gguf, *.hybridgen",
        remedy="Use the safetensors files of this model",
        file=str(path),
    )
