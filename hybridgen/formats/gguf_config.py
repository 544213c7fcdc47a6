"""GGUF metadata → ``ModelConfig``. Key names after the GGUF specification."""

from __future__ import annotations

import math
import struct
from typing import TypeVar

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_names import ROPE_FACTORS
from hybridgen.formats.model_file import bad_field
from hybridgen.models.config import ARCHITECTURES, ModelConfig, RopeKind, RopeScaling

Number = TypeVar("Number", int, float)

#: Keys that change the arithmetic in ways the Llama block does not have, and their idle values.
_FOREIGN_KEYS: dict[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
}


def model_config(gguf: GgufFile, bos_id: int | None, eos_ids: list[int]) -> ModelConfig:
    """The configuration that ``gguf`` describes.

    Raises:
        UnsupportedModel: another architecture, or a variant that the Llama block does not cover.
        BadModelFile: a key is missing, of the wrong type, or impossible.
    """
    keys = _Keys(gguf)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise bad_field(gguf.path, "token_embd.weight", "is missing or no matrix")
    num_heads = keys.per_layer("attention.head_count")
    num_kv_heads = keys.per_layer("attention.head_count_kv", num_heads)
    hidden_size = keys.integer("embedding_length")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    config = ModelConfig(
        architecture=keys.architecture,
        vocab_size=embedding.shape[0],
        num_layers=keys.integer("block_count"),
        hidden_size=hidden_size,
        intermediate_size=keys.per_layer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=_max_position(keys),
        rope_base=keys.real("rope.freq_base", 10_000.0),
        rope_scaling=_rope_scaling(keys),
        rms_norm_eps=round_f32(keys.real("attention.layer_norm_rms_epsilon")),
        is_embedding_tied="output.weight" not in gguf.tensors,
        bos_id=bos_id,
        eos_ids=eos_ids,
        has_qkv_bias="blk.0.attn_q.bias" in gguf.tensors,
        has_output_bias="blk.0.attn_output.bias" in gguf.tensors,
        has_mlp_bias="blk.0.ffn_up.bias" in gguf.tensors,
    )
    config.validate(str(gguf.path))
    return config


def round_f32(number: float) -> float:
    """The shortest decimal that a float32 stands for: 9.99999974e-06 → 1e-05."""
    return float(f"{number:.7g}")


class _Keys:
    """Typed access to ``<architecture>.<key>``."""

    def __init__(self, gguf: GgufFile) -> None:
        self.gguf = gguf
        architecture = gguf.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise bad_field(gguf.path, "general.architecture", "is missing or no text")
        self.architecture = architecture
        if architecture not in ARCHITECTURES:
            raise self.unsupported("general.architecture", architecture, ", ".join(ARCHITECTURES))
        for key, idle in _FOREIGN_KEYS.items():
            value = gguf.metadata.get(f"{architecture}.{key}", 0)
            if value not in idle:
                raise self.unsupported(key, str(value)[:80])

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.gguf.metadata

    def unsupported(self, key: str, value: str | int, limit: str | None = None) -> UnsupportedModel:
        return UnsupportedModel(
            f"{key} of this model is not implemented",
            field=key,
            value=value,
            limit=limit,
            remedy="Use a model of the Llama family",
            file=str(self.gguf.path),
        )

    def _bad(self, key: str, problem: str, value: object = None) -> BadModelFile:
        text = None if value is None else str(value)[:80]
        return bad_field(self.gguf.path, f"{self.architecture}.{key}", problem, text)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.gguf.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise self._bad(key, "is missing")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._bad(key, "is not an integer", value)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.gguf.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise self._bad(key, "is missing")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self._bad(key, "is not a finite number", value)
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self.gguf.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, str):
            raise self._bad(key, "is not text", value)
        return value

    def per_layer(self, key: str, default: int | None = None) -> int:
        """An integer that may be given per layer, if all layers have the same."""
        values = self.gguf.metadata.get(f"{self.architecture}.{key}")
        if not isinstance(values, list):
            return self.integer(key, default)
        if not values or not all(isinstance(value, int) for value in values):
            raise self._bad(key, "is not a list of integers")
        if len(set(values)) > 1:
            raise self.unsupported(key, "different values per layer")
        return int(values[0])


def _max_position(keys: _Keys) -> int:
    """The context length; within its window, attention with a sliding window is plain."""
    window = keys.integer("attention.sliding_window", 0)
    length = keys.integer("context_length")
    return min(length, window) if window > 0 else length


def _head_dim(keys: _Keys, hidden_size: int, num_heads: int) -> int:
    if num_heads < 1:
        raise bad_field(keys.gguf.path, "attention.head_count", "is impossible", num_heads)
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_dim) != head_dim:
            limit = f"the head's size {head_dim}"
            raise keys.unsupported(key, keys.integer(key), limit)
    return head_dim


def _rope_scaling(keys: _Keys) -> RopeScaling | None:
    kinds: dict[str, RopeKind] = {"linear": "linear", "yarn": "yarn"}
    if ROPE_FACTORS in keys.gguf.tensors:
        return RopeScaling(type="factors", freq_factors=_freq_factors(keys.gguf))
    kind = keys.text("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind not in kinds:
        raise keys.unsupported("rope.scaling.type", kind, "none, linear, yarn")
    scaling = RopeScaling(
        type=kinds[kind],
        factor=factor,
        original_max_position=keys.integer("rope.scaling.original_context_length", 0),
        beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
    )
    extra = keys.real("rope.scaling.attn_factor", 1.0)
    if kind == "linear" or extra == 1.0:
        return scaling
    # The format's factor comes on top of yarn's own.
    total = extra * scaling.effective_attention_factor
    return RopeScaling(
        type="yarn",
        factor=factor,
        original_max_position=scaling.original_max_position,
        beta_fast=scaling.beta_fast,
        beta_slow=scaling.beta_slow,
        attention_factor=total,
    )


def _freq_factors(gguf: GgufFile) -> list[float]:
    tensor = gguf.tensors[ROPE_FACTORS]
    if tensor.element.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 512:
        shape = f"{tensor.element.name} {tensor.shape}"
        raise bad_field(gguf.path, ROPE_FACTORS, "is not a short F32 vector", shape)
    with gguf.data(tensor) as view:
        return list(struct.unpack(f"<{tensor.shape[0]}f", view))
