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
    softcap: float


class NormRecord(NamedTuple):
    """struct hg_norm."""

    x: int
    weight: int
    y: int
    x_stride: int
    y_stride: int
    num_rows: int
    size: int
    is_added: int
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
    scale: float


class AttentionRecord(NamedTuple):
    """struct hg_attention."""

    qkv: int
    out: int
    keys: int
    values: int
    cosines: int
    sines: int
    q_norm: int
    k_norm: int
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
    rotary_size: int
    window: int
    dtype: int
    scale: float
    softcap: float
    epsilon: float


class ExpertsRecord(NamedTuple):
    """struct hg_experts of experts.h."""

    router: int
    gate_up: int
    down: int
    shared_gate_up: int
    shared_down: int
    gate_up_bytes: int
    down_bytes: int
    num_experts: int
    num_chosen: int
    size: int
    shared_size: int
    hidden_size: int
    dtype: int
    gate: int
    is_share_normalized: int
    logits: int
    shares: int
    chosen: int
    places: int
    ends: int
    active: int
    rows: int
    inner: int
    shared_inner: int
    logits_stride: int
    rows_stride: int
    inner_stride: int
    shared_inner_stride: int


class MixtureRecord(NamedTuple):
    """struct hg_mixture of experts.h."""

    experts: int
    x: int
    y: int
    x_stride: int
    y_stride: int
    num_rows: int
    is_added: int


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
    attention_post_norm: int
    mlp_post_norm: int
    q_norm: int
    k_norm: int
    cosines: int
    sines: int
    window: int
    keys: int
    values: int
    experts: int


class ModelRecord(NamedTuple):
    """struct hg_model."""

    num_layers: int
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_size: int
    gate: int
    dtype: int
    max_rows: int
    epsilon: float
    scale: float
    embedding_scale: float
    attention_softcap: float
    logit_softcap: float
    embedding: int
    lm_head: int
    final_norm: int
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
    | ExpertsRecord
    | MixtureRecord
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
