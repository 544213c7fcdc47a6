"""The shape of a decoder: every number that the arithmetic needs, and no tensor.

One block covers all families; what sets one apart is a field here, off by default. Torch-free.
Built by the families of ``formats.families``; travels inside ``.hybridgen`` files as JSON.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from hybridgen.models.config_check import MAX_EOS_IDS, check_config
from hybridgen.models.weight_names import weight_shapes

__all__ = ["MAX_EOS_IDS", "Experts", "ModelConfig", "RopeKind", "RopeScaling"]

RopeKind = Literal["linear", "llama3", "yarn", "dynamic", "factors", "longrope"]
ROPE_KINDS: tuple[str, ...] = get_args(RopeKind)


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How rotary frequencies are stretched.

    With f_i = rope_base^(-2i/head_dim):

    - ``linear``: every f_i divided by ``factor``.
    - ``llama3``: long wavelengths divided by ``factor``, short kept, smooth between (Llama 3.1).
    - ``yarn``: per-dimension blend (arXiv 2309.00071), cos and sin times ``attention_factor``.
    - ``dynamic``: NTK by length; changes nothing up to ``ModelConfig.max_position``, and the
      engine serves no longer context, so it equals no scaling here.
    - ``factors``: f_i divided by ``freq_factors[i]`` (GGUF's rope_freqs.weight).
    - ``longrope``: f_i divided by ``freq_factors[i]`` where the served context is longer than
      ``original_max_position``, by ``short_factors[i]`` where it is not, at all positions alike,
      since keys that are cached stay as they are; cos and sin times ``attention_factor`` either
      way (arXiv 2402.13753).

    With partial rotation, head_dim stands for ``ModelConfig.rotary_size`` throughout.
    """

    type: RopeKind
    factor: float = 1.0
    original_max_position: int = 0
    """Context length of training before stretching; set for llama3, yarn and longrope."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Multiplies cos and sin (yarn, longrope). None means, for factor > 1, 0.1·ln(factor) + 1
    (yarn) or √(1 + ln(factor) / ln(original_max_position)) (longrope)."""
    is_truncated: bool = True
    """yarn: the correction range is rounded outwards to whole dimensions (HF ``truncate``)."""
    freq_factors: list[float] = []
    """rotary_size / 2 divisors, for the types ``factors`` and ``longrope``."""
    short_factors: list[float] = []
    """The same number of them, for type ``longrope``."""

    @property
    def effective_attention_factor(self) -> float:
        """The multiplier of cos and sin with the default worked out."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.type not in ("yarn", "longrope") or self.factor <= 1.0:
            return 1.0
        if self.type == "yarn":
            return 0.1 * math.log(self.factor) + 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position))


class Experts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A feed-forward block of which every token takes a part (Shazeer et al. 2017).

    Router logits r = W x, shares s = softmax(r) over all experts; the token takes the
    ``num_chosen`` experts with the greatest shares (of equal ones the first), and its output is
    Σ s_e · expert_e(x), with the chosen shares divided by their sum where ``is_share_normalized``.
    A shared expert, if there is one, adds sigmoid(w · x) times its own output.
    """

    num_experts: int
    num_chosen: int
    size: int
    """Inner size of one expert."""
    is_share_normalized: bool = True
    shared_size: int = 0
    """Inner size of the shared expert; 0 for none."""
    dense_layers: list[int] = []
    """Layers with a plain feed-forward block of ``intermediate_size`` instead."""

    @property
    def num_router_rows(self) -> int:
        """Outputs of the router, and behind them the gate of a shared expert: one product."""
        return self.num_experts + (1 if self.shared_size else 0)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder: RMSNorm, rotate-half RoPE, grouped-query attention, gated feed-forward block."""

    architecture: str
    """Name of the family in ``formats.families``."""
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
    rotary_dim: int = 0
    """Leading dimensions of a head that are rotated; 0 for all."""
    local_rope_base: float = 0.0
    """Layers with a window rotate with this base and no scaling; 0: like all others."""
    layer_windows: list[int] = []
    """Per layer the positions that a token attends to, itself included; 0 for all of them.
    Empty: no layer has a window."""
    rms_norm_eps: float = 1e-5
    norm_offset: float = 0.0
    """Added to every norm's weight."""
    has_qk_norm: bool = False
    """Each head of q and k is normalized before rotation, by weights of head_dim elements."""
    has_post_norms: bool = False
    """What attention and feed-forward block give is normalized before it is added."""
    embedding_scale: float = 1.0
    """Multiplies embeddings on their way into the first block."""
    attention_scale: float = 0.0
    """Multiplies q · k; 0 for head_dim^-½."""
    attention_softcap: float = 0.0
    """c > 0: scaled scores s become c · tanh(s / c)."""
    logit_softcap: float = 0.0
    """The same for logits."""
    is_embedding_tied: bool = False
    """The output matrix is the embedding; then there is no lm_head.weight."""
    bos_id: int | None = None
    eos_ids: list[int] = []
    """Ids that end a text; at most 16."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    """o_proj has a bias."""
    has_mlp_bias: bool = False
    activation: Literal["silu", "gelu_tanh", "mock"] = "silu"
    """Gate of the feed-forward block; ``mock`` marks the mock engine, which has no weights."""
    experts: Experts | None = None
    """None: every layer has a plain feed-forward block."""

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

    @property
    def qkv_size(self) -> int:
        """Rows of the fused projection: q heads, k heads, v heads."""
        return self.q_size + 2 * self.kv_size

    @property
    def rotary_size(self) -> int:
        """Leading dimensions of a head that are rotated."""
        return self.rotary_dim or self.head_dim

    @property
    def score_scale(self) -> float:
        """Multiplies q · k."""
        return self.attention_scale or self.head_dim**-0.5

    def window(self, layer: int) -> int:
        """Positions that a token attends to in this layer, itself included; 0 for all."""
        return self.layer_windows[layer] if self.layer_windows else 0

    @property
    def kept_window(self) -> int:
        """Positions whose keys and values some layer still reads; 0 for all."""
        windows = self.layer_windows
        return max(windows) if windows and all(windows) else 0

    def has_local_rope(self, layer: int) -> bool:
        """Whether this layer rotates with ``local_rope_base``."""
        return self.local_rope_base > 0 and self.window(layer) > 0

    def has_experts(self, layer: int) -> bool:
        """Whether this layer's feed-forward block is made of experts."""
        return self.experts is not None and layer not in self.experts.dense_layers

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Keys and values of one token over all layers, in bytes."""
        return 2 * self.num_layers * self.kv_size * element_bytes

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied embedding counted once."""
        return sum(math.prod(shape) for shape in self.weight_shapes().values())

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every weight, fused as the products take them; see ``weight_names``."""
        return weight_shapes(self)

    def validate(self, source: str) -> None:
        """Check every bound and how the numbers fit each other; ``source`` names the file.

        Raises:
            BadModelFile: a number is impossible; field ``field`` names it.
        """
        check_config(self, source)
