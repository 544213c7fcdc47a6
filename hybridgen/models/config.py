"""The shape of a Llama-family model: every number that the arithmetic needs, and no tensor.

Torch-free. Built from GGUF metadata by ``formats.gguf_config``, from config.json by
``formats.huggingface_config``; travels inside ``.hybridgen`` files as JSON.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from hybridgen.errors import BadModelFile, UnsupportedModel

#: Architectures that the Llama block covers, under the names that model files use.
ARCHITECTURES = ("llama", "mistral", "qwen2")
MAX_EOS_IDS = 16  # HG_MAX_EOS_IDS of ipc/layout.h

RopeKind = Literal["linear", "llama3", "yarn", "dynamic", "factors"]
ROPE_KINDS: tuple[str, ...] = ("linear", "llama3", "yarn", "dynamic", "factors")


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How rotary frequencies are stretched.

    With f_i = rope_base^(-2i/head_dim):

    - ``linear``: every f_i divided by ``factor``.
    - ``llama3``: long wavelengths divided by ``factor``, short kept, smooth between (Llama 3.1).
    - ``yarn``: per-dimension blend (arXiv 2309.00071), cos and sin times ``attention_factor``.
    - ``dynamic``: NTK by length; changes nothing up to ``ModelConfig.max_position``, and the
      engine serves no longer context, so it equals no scaling here.
    - ``factors``: f_i divided by ``freq_factors[i]`` (GGUF's rope_freqs.weight).
    """

    type: RopeKind
    factor: float = 1.0
    original_max_position: int = 0
    """Context length of training before stretching; set for llama3 and yarn."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Multiplies cos and sin (yarn); None means 0.1·ln(factor) + 1 for factor > 1."""
    is_truncated: bool = True
    """yarn: the correction range is rounded outwards to whole dimensions (HF ``truncate``)."""
    freq_factors: list[float] = []
    """head_dim / 2 divisors, for type ``factors``."""

    @property
    def effective_attention_factor(self) -> float:
        """The multiplier of cos and sin with the default worked out."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.type != "yarn" or self.factor <= 1.0:
            return 1.0
        return 0.1 * math.log(self.factor) + 1.0


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Llama-family decoder: RMSNorm, rotate-half RoPE, grouped-query attention, SwiGLU."""

    architecture: str
    vocab_size: int
    """Rows of the embedding and of the output matrix."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    """Context length that the model was made for, in tokens."""
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    is_embedding_tied: bool = False
    """The output matrix is the embedding; then there is no lm_head.weight."""
    bos_id: int | None = None
    eos_ids: list[int] = []
    """Ids that end a text; at most 16."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    """o_proj has a bias."""
    has_mlp_bias: bool = False
    activation: Literal["silu", "mock"] = "silu"
    """Gate of the feed-forward block; ``mock`` marks the mock engine, which has no weights."""

    @property
    def num_kv_groups(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def q_size(self) -> int:
        """Rows of q_proj."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Keys and values of one token over all layers, in bytes."""
        return 2 * self.num_layers * self.kv_size * element_bytes

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied embedding counted once."""
        return sum(math.prod(shape) for shape in self.weight_shapes().values())

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every weight, in Hugging Face's Llama naming; (out, in) for matrices."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size)
        }
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            shapes.update({prefix + name: shape for name, shape in self._layer_shapes().items()})
        shapes["model.norm.weight"] = (self.hidden_size,)
        if not self.is_embedding_tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner, q_size, kv_size = (
            self.hidden_size,
            self.intermediate_size,
            self.q_size,
            self.kv_size,
        )
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (q_size, hidden),
            "self_attn.k_proj.weight": (kv_size, hidden),
            "self_attn.v_proj.weight": (kv_size, hidden),
            "self_attn.o_proj.weight": (hidden, q_size),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        if self.has_qkv_bias:
            shapes["self_attn.q_proj.bias"] = (q_size,)
            shapes["self_attn.k_proj.bias"] = (kv_size,)
            shapes["self_attn.v_proj.bias"] = (kv_size,)
        if self.has_output_bias:
            shapes["self_attn.o_proj.bias"] = (hidden,)
        if self.has_mlp_bias:
            shapes["mlp.gate_proj.bias"] = (inner,)
            shapes["mlp.up_proj.bias"] = (inner,)
            shapes["mlp.down_proj.bias"] = (hidden,)
        return shapes

    def validate(self, source: str) -> None:
        """Check every bound and how the numbers fit each other; ``source`` names the file.

        Raises:
            UnsupportedModel: the architecture is not one of ``ARCHITECTURES``.
            BadModelFile: a number is impossible; field ``field`` names it.
        """
        if self.architecture not in ARCHITECTURES:
            raise UnsupportedModel(
                "this model architecture is not implemented",
                value=self.architecture,
                limit=", ".join(ARCHITECTURES),
                remedy="Use a model of the Llama family",
                file=source,
            )
        for name, low, high in _BOUNDS:
            _require(source, name, getattr(self, name), low, high)
        if self.head_dim % 2:
            raise _bad(source, "head_dim", self.head_dim, "an even number")
        if self.num_heads % self.num_kv_heads:
            limit = f"a divisor of num_heads = {self.num_heads}"
            raise _bad(source, "num_kv_heads", self.num_kv_heads, limit)
        _require(source, "eos_ids (count)", len(self.eos_ids), 0, MAX_EOS_IDS)
        ids = [*self.eos_ids, *([] if self.bos_id is None else [self.bos_id])]
        for token_id in ids:
            _require(source, "bos_id / eos_ids", token_id, 0, self.vocab_size - 1)
        if self.rope_scaling is not None:
            _validate_rope(source, self.rope_scaling, self.head_dim)


_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("vocab_size", 2, 2**19),  # sums of sampling weights are exact up to there (sampling/lanes.h)
    ("num_layers", 1, 1024),
    ("hidden_size", 1, 2**17),
    ("intermediate_size", 1, 2**20),
    ("num_heads", 1, 1024),
    ("num_kv_heads", 1, 1024),
    ("head_dim", 2, 1024),
    ("max_position", 1, 2**27),
    ("rope_base", 1.0, 1e12),
    ("rms_norm_eps", 0.0, 1.0),
)


def _validate_rope(source: str, scaling: RopeScaling, head_dim: int) -> None:
    _require(source, "rope_scaling.factor", scaling.factor, 1e-6, 1e6)
    if scaling.type in ("llama3", "yarn"):
        position = scaling.original_max_position
        _require(source, "rope_scaling.original_max_position", position, 1, 2**27)
    if scaling.type == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        _require(source, "rope_scaling.low_freq_factor", low, 1e-6, 1e6)
        if not low < high <= 1e6:
            limit = f"more than low_freq_factor = {low}"
            raise _bad(source, "rope_scaling.high_freq_factor", high, limit)
    if scaling.type == "yarn":
        _require(source, "rope_scaling.beta_slow", scaling.beta_slow, 1e-6, 1e6)
        _require(source, "rope_scaling.beta_fast", scaling.beta_fast, scaling.beta_slow, 1e6)
        _require(
            source,
            "rope_scaling.attention_factor",
            scaling.effective_attention_factor,
            1e-6,
            1e6,
        )
    if scaling.type == "factors":
        count = len(scaling.freq_factors)
        _require(source, "rope_freqs (count)", count, head_dim // 2, head_dim // 2)
        for factor in scaling.freq_factors:
            _require(source, "rope_freqs", factor, 1e-6, 1e6)


def _require(source: str, name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # false for NaN too
        raise _bad(source, name, value, f"[{low}, {high}]")


def _bad(source: str, name: str, value: float, limit: str) -> BadModelFile:
    return BadModelFile(
        f"{name} of the model is impossible",
        field=name,
        value=value if math.isfinite(value) else str(value),
        limit=limit,
        remedy="Fetch or convert the model again",
        file=source,
    )
