"""A file mapped for reading, opened without trust: what every format reader starts from."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from hybridgen.errors import BadModelFile, FieldValue

#: Of a field's name, which the file itself may choose.
_MAX_FIELD_CHARS = 256


def bad_field(
    path: Path | str,
    field: str,
    problem: str,
    value: FieldValue = None,
    limit: FieldValue = None,
    *,
    remedy: str = "The file is damaged or not what it seems; fetch or convert it again",
) -> BadModelFile:
    """``BadModelFile`` that names the file and the field."""
    name, field = Path(path).name, field[:_MAX_FIELD_CHARS]
    return BadModelFile(
        f"{field} of {name} {problem}",
        field=field,
        file=str(path),
        value=value,
        limit=limit,
        remedy=remedy,
    )


class ModelFile:
    """A read-only mapping of a regular file.

    Raises:
        BadModelFile: not there, not readable, not a regular file, or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            remedy = "Check the path and its permissions"
            raise bad_field(
                path, "path", f"cannot be read: {error.strerror}", str(path), remedy=remedy
            ) from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                remedy = "Give the path of a model file"
                raise bad_field(path, "path", "is not a regular file", str(path), remedy=remedy)
            if status.st_size == 0:
                raise bad_field(path, "size", "is zero: the file is empty", 0)
            self.size_bytes = status.st_size
            self.buf = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Unmap; views of ``buf`` must be gone."""
        self.buf.close()

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
