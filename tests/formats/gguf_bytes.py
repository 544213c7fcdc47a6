"""GGUF files of any shape, also impossible ones, byte by byte."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

HUGE = 2**64 - 1


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(element: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", element, count) + payload


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0, num_dims: int = -1) -> bytes:
    count = len(dims) if num_dims < 0 else num_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


@dataclass
class GgufBytes:
    """Defaults make a valid, empty file."""

    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_metadata: int | None = None
    metadata: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    alignment: int = 32

    def build(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_metadata = len(self.metadata) if self.num_metadata is None else self.num_metadata
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_metadata)
        head += b"".join(self.metadata) + b"".join(self.tensors)
        padding = -len(head) % self.alignment if self.tensors else 0
        return head + b"\0" * padding + self.data

    def write(self, folder: Path) -> Path:
        path = folder / "made.gguf"
        path.write_bytes(self.build())
        return path
