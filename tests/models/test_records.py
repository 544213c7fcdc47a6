from __future__ import annotations

import struct

import pytest

from hybridgen.models import _native
from hybridgen.models.records import (
    AttentionRecord,
    BatchRecord,
    GatherRecord,
    LayerRecord,
    LinearRecord,
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
}


def test_records_have_the_size_of_their_c_structures():
    assert {name: record_bytes(cls) for name, cls in RECORDS.items()} == _native.layout()


def test_integers_and_doubles_are_encoded_as_8_byte_words():
    record = NormRecord(1, 2, 3, 4, 5, 6, 7, epsilon=0.5)
    assert encode_record(record) == struct.pack("=7qd", 1, 2, 3, 4, 5, 6, 7, 0.5)


def test_a_record_of_the_wrong_size_is_refused():
    pool = _native.create_pool(1)
    with pytest.raises(ValueError, match="record of 8 bytes"):
        _native.norm(pool, bytes(8))
