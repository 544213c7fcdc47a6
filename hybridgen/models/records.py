"""The records of ops.h: one NamedTuple per C structure, same fields in the same order.

Every field is one 8-byte word: int for integers and addresses (0 is NULL), float for doubles.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, get_args, get_type_hints


class PackRecord(NamedTuple):
    """struct hg_pack: row-major weights → panels."""

    panels: int
    first: int
    second: int
    num_outputs: int
    depth: int
    dtype: int
    is_paired: int


class LinearRecord(NamedTuple):
    """struct hg_linear."""

    panels: int
    bias: int
    x: int
    y: int
    x_stride: int
    y_stride: int
    num_rows: int
    num_outputs: int
    depth: int
    dtype: int
    epilogue: int


class NormRecord(NamedTuple):
    """struct hg_norm."""

    x: int
    weight: int
    y: int
    x_stride: int
    y_stride: int
    num_rows: int
    size: int
    epsilon: float


class GatherRecord(NamedTuple):
    """struct hg_gather."""

    panels: int
    ids: int
    y: int
    y_stride: int
    num_rows: int
    depth: int
    dtype: int


class AttentionRecord(NamedTuple):
    """struct hg_attention."""

    qkv: int
    out: int
    keys: int
    values: int
    cosines: int
    sines: int
    positions: int
    tables: int
    scratch: int
    qkv_stride: int
    out_stride: int
    table_stride: int
    scratch_stride: int
    num_tokens: int
    tokens_per_sequence: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: int
    scale: float


class LayerRecord(NamedTuple):
    """struct hg_layer."""

    qkv: int
    output: int
    gate_up: int
    down: int
    qkv_bias: int
    output_bias: int
    gate_up_bias: int
    down_bias: int
    attention_norm: int
    mlp_norm: int
    keys: int
    values: int


class ModelRecord(NamedTuple):
    """struct hg_model."""

    num_layers: int
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: int
    max_rows: int
    epsilon: float
    scale: float
    embedding: int
    lm_head: int
    final_norm: int
    cosines: int
    sines: int
    hidden: int
    normed: int
    qkv: int
    attended: int
    inner: int
    scratch: int
    hidden_stride: int
    qkv_stride: int
    attended_stride: int
    inner_stride: int
    scratch_stride: int


class BatchRecord(NamedTuple):
    """struct hg_batch."""

    ids: int
    positions: int
    tables: int
    table_stride: int
    num_tokens: int
    tokens_per_sequence: int
    num_logits: int
    logits: int
    logits_stride: int


Record = (
    PackRecord
    | LinearRecord
    | NormRecord
    | GatherRecord
    | AttentionRecord
    | LayerRecord
    | ModelRecord
    | BatchRecord
)


def _struct(record_type: type) -> struct.Struct:
    codes = {int: "q", float: "d"}
    return struct.Struct("=" + "".join(codes[t] for t in get_type_hints(record_type).values()))


_STRUCTS: dict[type, struct.Struct] = {cls: _struct(cls) for cls in get_args(Record)}


def record_bytes(record_type: type) -> int:
    """Size of the C structure."""
    return _STRUCTS[record_type].size


def encode_record(record: Record) -> bytes:
    """The C structure as bytes, in the machine's own byte order."""
    return _STRUCTS[type(record)].pack(*record)
