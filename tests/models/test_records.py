from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import get_type_hints

import pytest

from hybridgen import models
from hybridgen.models import _native
from hybridgen.models.records import (
    AttentionRecord,
    BatchRecord,
    ExpertsRecord,
    GatherRecord,
    LayerRecord,
    LinearRecord,
    MixtureRecord,
    ModelRecord,
    NormRecord,
    PackRecord,
    encode_record,
    record_bytes,
)

RECORDS = {
    "pack": PackRecord,
    "linear": LinearRecord,
    "gather": GatherRecord,
    "norm": NormRecord,
    "attention": AttentionRecord,
    "layer": LayerRecord,
    "model": ModelRecord,
    "batch": BatchRecord,
    "experts": ExpertsRecord,
    "mixture": MixtureRecord,
}


def test_records_have_the_size_of_their_c_structures():
    assert {name: record_bytes(cls) for name, cls in RECORDS.items()} == _native.layout()


def c_fields(name: str) -> dict[str, type]:
    """Field → float for double and int for all else, in the order of the header."""
    folder = Path(models.__file__).parent
    text = "".join((folder / header).read_text() for header in ("ops.h", "experts.h"))
    body = re.search(
        rf"struct hg_{name} {{(.*?)\n}};", re.sub(r"/\*.*?\*/", "", text, flags=re.S), re.S
    )
    assert body is not None
    declarations = [line.split() for line in body[1].replace("*", " ").split(";") if line.strip()]
    return {words[-1]: float if words[0] == "double" else int for words in declarations}


@pytest.mark.parametrize("name", RECORDS)
def test_records_have_the_fields_of_their_c_structures_in_the_same_order(name: str):
    assert list(get_type_hints(RECORDS[name]).items()) == list(c_fields(name).items())


def test_integers_and_doubles_are_encoded_as_8_byte_words():
    record = NormRecord(1, 2, 3, 4, 5, 6, 7, 8, epsilon=0.5)
    assert encode_record(record) == struct.pack("=8qd", 1, 2, 3, 4, 5, 6, 7, 8, 0.5)


def test_a_record_of_the_wrong_size_is_refused():
    pool = _native.create_pool(1)
    with pytest.raises(ValueError, match="record of 8 bytes"):
        _native.norm(pool, bytes(8))
