from __future__ import annotations

import os
import resource
import struct
import time
from pathlib import Path

import pytest

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_types import ELEMENT_TYPES
from tests.formats.gguf_bytes import HUGE, GgufBytes, array, entry, tensor, text
from tools.make_tiny_model import TinyModel

U32, STRING, ARRAY = 4, 8, 9


def test_every_value_type_is_read(tmp_path: Path):
    made = GgufBytes(
        metadata=[
            entry("u8", 0, struct.pack("<B", 200)),
            entry("i8", 1, struct.pack("<b", -5)),
            entry("u16", 2, struct.pack("<H", 60_000)),
            entry("i16", 3, struct.pack("<h", -300)),
            entry("u32", 4, struct.pack("<I", 2**32 - 1)),
            entry("i32", 5, struct.pack("<i", -1)),
            entry("f32", 6, struct.pack("<f", 0.5)),
            entry("bool", 7, b"\1"),
            entry("text", STRING, text("ö")),
            entry("u64", 10, struct.pack("<Q", HUGE)),
            entry("i64", 11, struct.pack("<q", -(2**62))),
            entry("f64", 12, struct.pack("<d", 1e300)),
            entry("texts", ARRAY, array(STRING, 2, text("a") + text(""))),
            entry("numbers", ARRAY, array(5, 3, struct.pack("<3i", 1, -2, 3))),
            entry("flags", ARRAY, array(7, 2, b"\1\0")),
            entry("empty", ARRAY, array(6, 0)),
        ]
    )
    with GgufFile(made.write(tmp_path)) as gguf:
        assert gguf.metadata == {
            "u8": 200,
            "i8": -5,
            "u16": 60_000,
            "i16": -300,
            "u32": 2**32 - 1,
            "i32": -1,
            "f32": 0.5,
            "bool": True,
            "text": "ö",
            "u64": HUGE,
            "i64": -(2**62),
            "f64": 1e300,
            "texts": ["a", ""],
            "numbers": [1, -2, 3],
            "flags": [True, False],
            "empty": [],
        }


def test_tensors_have_their_shape_and_bytes(tmp_path: Path):
    made = GgufBytes(
        tensors=[tensor("a", [3, 2]), tensor("b", [32, 2], kind=8, offset=32)],
        data=bytes(range(24)) + bytes(8) + bytes([7]) * 68,
    )
    with GgufFile(made.write(tmp_path)) as gguf:
        assert gguf.tensors["a"].shape == (2, 3)
        assert gguf.tensors["b"].shape == (2, 32)
        with gguf.data(gguf.tensors["a"]) as view:
            assert bytes(view) == bytes(range(24))
        with gguf.data(gguf.tensors["b"]) as view:
            assert bytes(view) == bytes([7]) * 68


BAD = {
    "magic": GgufBytes(magic=b"GGML"),
    "version 0": GgufBytes(version=0),
    "version 99": GgufBytes(version=99),
    "tensor_count": GgufBytes(num_tensors=HUGE),
    "tensor_count past the end": GgufBytes(num_tensors=1),
    "metadata_kv_count": GgufBytes(num_metadata=HUGE),
    "metadata_kv_count past the end": GgufBytes(num_metadata=1000),
    "key (length)": GgufBytes(metadata=[struct.pack("<Q", HUGE) + b"key" * 9]),
    "key": GgufBytes(metadata=[entry("k", U32, bytes(4)).replace(b"k", b"\xff")]),
    "k (length)": GgufBytes(metadata=[entry("k", STRING, struct.pack("<Q", 2**40) + b"x" * 20)]),
    "k stands twice": GgufBytes(metadata=[entry("k", U32, bytes(4))] * 2),
    "k (type)": GgufBytes(metadata=[entry("k", 13, bytes(8))]),
    "k is cut": GgufBytes(metadata=[entry("kk", 10, b"")]),
    "k (length) 2^40 texts": GgufBytes(metadata=[entry("k", ARRAY, array(STRING, 2**40))]),
    "k (length) 2^40 numbers": GgufBytes(metadata=[entry("k", ARRAY, array(5, 2**40))]),
    "k (length) all": GgufBytes(metadata=[entry("k", ARRAY, array(0, HUGE))]),
    "k (element type)": GgufBytes(metadata=[entry("k", ARRAY, array(ARRAY, 1, array(0, 0)))]),
    "k (length) more than there are": GgufBytes(
        metadata=[entry("k", ARRAY, array(STRING, 9, text("a")))]
    ),
    "k[1] (length)": GgufBytes(
        metadata=[entry("k", ARRAY, array(STRING, 2, text("a") + struct.pack("<Q", HUGE)))]
    ),
    "k[0] is not UTF-8": GgufBytes(metadata=[entry("k", ARRAY, array(STRING, 1, text(b"\xc3")))]),
    "general.alignment": GgufBytes(metadata=[entry("general.alignment", U32, bytes(4))]),
    "general.alignment ": GgufBytes(
        metadata=[entry("general.alignment", U32, struct.pack("<I", 24))]
    ),
    "general.alignment  ": GgufBytes(metadata=[entry("general.alignment", STRING, text("32"))]),
    "t (dimensions)": GgufBytes(tensors=[tensor("t", [4], num_dims=2**31)], data=bytes(64)),
    "t (dimensions) none": GgufBytes(tensors=[tensor("tttttttt", [])], data=bytes(64)),
    "t (shape)": GgufBytes(tensors=[tensor("t", [2**63, 2**63])], data=bytes(64)),
    "t (shape) negative": GgufBytes(tensors=[tensor("t", [HUGE])], data=bytes(64)),
    "t (shape) zero": GgufBytes(tensors=[tensor("t", [0, 4])], data=bytes(64)),
    "t (type)": GgufBytes(tensors=[tensor("t", [4], kind=200)], data=bytes(64)),
    "t (type) removed": GgufBytes(tensors=[tensor("t", [4], kind=4)], data=bytes(64)),
    "t (row length)": GgufBytes(tensors=[tensor("t", [33], kind=8)], data=bytes(64)),
    "t (offset)": GgufBytes(tensors=[tensor("t", [4], offset=4)], data=bytes(64)),
    "t (offset) past the end": GgufBytes(tensors=[tensor("t", [4], offset=2**63)], data=bytes(64)),
    "t (offset) cut": GgufBytes(tensors=[tensor("t", [64])], data=bytes(64)),
    "t stands twice": GgufBytes(
        tensors=[tensor("t", [4]), tensor("t", [4], offset=32)], data=bytes(64)
    ),
    "t (offset) overlaps": GgufBytes(
        tensors=[tensor("s", [16]), tensor("t", [4], offset=32)], data=bytes(64)
    ),
    "tensor data": GgufBytes(tensors=[tensor("t", [4])], alignment=1),
}


@pytest.mark.parametrize("name", BAD)
def test_damage_is_a_bad_model_file_that_names_the_field(name: str, tmp_path: Path):
    path = BAD[name].write(tmp_path)
    before_s = time.perf_counter()
    with pytest.raises(BadModelFile) as caught:
        GgufFile(path)
    assert time.perf_counter() - before_s < 1.0
    fields = caught.value.fields
    assert name.split(maxsplit=1)[0] in str(fields["field"])
    assert fields["file"] == str(path)
    assert fields["remedy"]


def test_big_endian_is_named(tmp_path: Path):
    with pytest.raises(UnsupportedModel, match="big-endian"):
        GgufFile(GgufBytes(version=3 << 24).write(tmp_path))


@pytest.mark.parametrize("num_bytes", [0, 3, 4, 7, 8, 23])
def test_a_file_cut_in_its_header_is_refused(num_bytes: int, tmp_path: Path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(GgufBytes().build()[:num_bytes])
    with pytest.raises(BadModelFile):
        GgufFile(path)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path):
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, tmp_path / "missing.gguf", Path("/dev/zero")):
        with pytest.raises(BadModelFile, match="path"):
            GgufFile(path)


def test_an_array_of_2_40_takes_no_memory(tmp_path: Path):
    path = BAD["k (length) 2^40 numbers"].write(tmp_path)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadModelFile):
        GgufFile(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024


def test_the_tiny_file_reads_as_the_gguf_package_reads_it(tiny: TinyModel):
    assert_same_as_package(tiny.gguf)


@pytest.mark.slow
def test_the_demo_file_reads_as_the_gguf_package_reads_it(demo_path: Path):
    assert_same_as_package(demo_path)


def test_the_demo_file_is_read_quickly(demo_path: Path):
    def read_s() -> float:
        before_s = time.process_time()
        GgufFile(demo_path).close()
        return time.process_time() - before_s

    assert min(read_s() for _ in range(5)) < 0.2  # 0.07 s on an idle core


def test_element_types_are_those_of_the_gguf_package():
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    for number, element in ELEMENT_TYPES.items():
        kind = GGMLQuantizationType(number)
        sizes = (element.block_size, element.block_bytes)
        assert (kind.name, GGML_QUANT_SIZES[kind]) == (element.name, sizes)


def assert_same_as_package(path: Path) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(path)
    with GgufFile(path) as ours:
        theirs = {
            key: value.contents()
            for key, value in reader.fields.items()
            if not key.startswith("GGUF.")
        }
        assert ours.metadata == theirs
        assert [item.name for item in reader.tensors] == list(ours.tensors)
        for item in reader.tensors:
            mine = ours.tensors[item.name]
            assert mine.shape == tuple(int(size) for size in reversed(item.shape))
            assert (mine.start, mine.num_bytes) == (item.data_offset, item.n_bytes)
            assert mine.element.name == item.tensor_type.name
