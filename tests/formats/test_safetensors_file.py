from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.convert import convert_model
from hybridgen.formats.hybridgen_file import read_hybridgen
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.safetensors_file import encode_header, read_header, write_tensors
from tools.make_tiny_model import TinyModel


def test_the_library_reads_what_is_written(tmp_path: Path):
    from safetensors.numpy import load_file

    values = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array([1.5], dtype=np.float32),
    }
    shapes = {name: array.shape for name, array in values.items()}
    header, data_bytes = encode_header(shapes, "F32", {"note": "ö"})
    assert len(header) % 64 == 0
    path = tmp_path / "x.safetensors"
    with open(path, "wb") as file:
        written = write_tensors(file, header, (array.data.cast("B") for array in values.values()))
    assert written == data_bytes == 28
    loaded = load_file(path)
    assert all(np.array_equal(loaded[name], values[name]) for name in values)
    assert read_header(path).metadata == {"note": "ö"}


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


@pytest.fixture
def made(tiny: TinyModel, tmp_path: Path) -> Path:
    info = inspect_model(str(tiny.gguf), Config())
    return convert_model(info, "float32", tmp_path / "made.hybridgen")


def edited(path: Path, **metadata: str) -> Path:
    header = read_header(path)
    content = path.read_bytes()[header.data_start :]
    shapes = {name: item.shape for name, item in header.tensors.items()}
    head, _ = encode_header(shapes, "F32", {**header.metadata, **metadata})
    buffer = io.BytesIO()
    write_tensors(buffer, head, [memoryview(content)])
    path.write_bytes(buffer.getvalue())
    return path


def test_an_unedited_copy_reads_the_same(made: Path):
    before = read_hybridgen(made)
    assert read_hybridgen(edited(made)) == before
    assert before.dtype == "float32"


def test_a_file_of_another_version_is_unsupported(made: Path):
    with pytest.raises(UnsupportedModel, match="another version"):
        read_hybridgen(edited(made, version="2"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "pt"),
        ("dtype", "F64"),
        ("dtype", "BF16"),
        ("config", "{}"),
        ("config", "not json"),
        ("tokenizer", '{"kind": "wordpiece"}'),
        ("tokenizer", '{"kind": "bpe", "source_file": "../tokenizer.json"}'),
        ("tokenizer", '{"kind": "bpe", "source_file": "gone.json"}'),
    ],
)
def test_a_bad_entry_is_named(key: str, value: str, made: Path):
    with pytest.raises(BadModelFile) as caught:
        read_hybridgen(edited(made, **{key: value}))
    assert key in str(caught.value.fields["field"])
