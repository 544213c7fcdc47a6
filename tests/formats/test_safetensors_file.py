from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridgen.errors import BadModelFile, InternalError
from hybridgen.formats.safetensors_file import TensorType, encode_header, read_header
from tools.make_tiny_model import TinyModel


def test_the_library_reads_what_is_written(tmp_path: Path):
    from safetensors.numpy import load_file

    values = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array([1, -2, 3], dtype=np.int8),
    }
    header = encode_header(
        {"b": TensorType("F32", (2, 3)), "a": TensorType("I8", (3,))}, {"note": "ö"}
    )
    assert len(header) % 64 == 0
    path = tmp_path / "x.safetensors"
    path.write_bytes(header + b"".join(array.tobytes() for array in values.values()))
    loaded = load_file(path)
    assert all(np.array_equal(loaded[name], values[name]) for name in values)
    assert read_header(path).metadata == {"note": "ö"}


def test_an_order_that_would_leave_a_tensor_unaligned_is_a_bug():
    with pytest.raises(InternalError, match="aligned"):
        encode_header({"a": TensorType("I8", (3,)), "b": TensorType("F32", (1,))}, {})


def test_what_the_library_writes_is_read(tiny: TinyModel):
    tensors = read_header(tiny.folder / "model.safetensors").tensors
    found = {name: item.shape for name, item in tensors.items()}
    assert found == {name: values.shape for name, values in tiny.weights.items()}
    assert {item.dtype for item in tensors.values()} == {"F32"}


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


EIGHT = bytes(8)
BAD = {
    "short": b"\1\2\3",
    "length 2^64-1": struct.pack("<Q", 2**64 - 1) + EIGHT,
    "length past the end": struct.pack("<Q", 100) + b"{}",
    "not JSON": file_of(b"{oops"),
    "not an object": file_of(b"[1, 2]"),
    "deep": file_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "metadata of numbers": file_of({"__metadata__": {"a": 1}}),
    "dtype": file_of(one(dtype="F3"), EIGHT),
    "negative shape": file_of(one(shape=(-1, -2)), EIGHT),
    "overflowing shape": file_of(one(shape=(2**62, 2**62)), EIGHT),
    "many dimensions": file_of(one(shape=[1] * 1000), EIGHT),
    "offsets reversed": file_of(one(offsets=(8, 0)), EIGHT),
    "offsets past the end": file_of(one(offsets=(2**40, 2**40 + 8)), EIGHT),
    "hole": file_of(one(offsets=(8, 16)), EIGHT * 2),
    "overlap": file_of({**one(), "u": one()["t"]}, EIGHT),
    "cut": file_of(one(), EIGHT[:7]),
    "longer": file_of(one(), EIGHT + b"\0"),
    "missing key": file_of({"t": {"dtype": "F32", "shape": [2]}}, EIGHT),
}


@pytest.mark.parametrize("name", BAD)
def test_damage_is_refused(name: str, tmp_path: Path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(BAD[name])
    with pytest.raises(BadModelFile) as caught:
        read_header(path)
    assert caught.value.fields["field"]
    assert len(str(caught.value)) < 1000
