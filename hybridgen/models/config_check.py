"""Whether the numbers of a model's configuration are possible, alone and together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridgen.errors import BadModelFile

if TYPE_CHECKING:
    from hybridgen.models.config import Experts, ModelConfig, RopeScaling

MAX_EOS_IDS = 16  # HG_MAX_EOS_IDS of ipc/layout.h

_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("vocab_size", 2, 2**19),  # sums of sampling weights are exact up to there (sampling/lanes.h)
    ("num_layers", 1, 1024),
    ("hidden_size", 1, 2**17),
    ("intermediate_size", 1, 2**20),
    ("num_heads", 1, 1024),
    ("num_kv_heads", 1, 1024),
    ("head_dim", 2, 1024),
    ("max_position", 1, 2**27),
    ("rope_base", 1.001, 1e12),  # yarn divides by its logarithm
    ("rms_norm_eps", 0.0, 1.0),
    ("norm_offset", -16.0, 16.0),
    ("embedding_scale", 1e-6, 1e6),
    ("attention_scale", 0.0, 1e6),
    ("attention_softcap", 0.0, 1e6),
    ("logit_softcap", 0.0, 1e6),
    ("local_rope_base", 0.0, 1e12),
)
_EXPERT_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("num_experts", 1, 4096),
    ("size", 1, 2**20),
    ("shared_size", 0, 2**20),
)
_LARGEST = 2**63  # what is larger, or no number at all, is shown as text
#: Most experts of all layers together.
MAX_EXPERTS = 2**15
#: Most experts that a token takes.
MAX_CHOSEN = 64


def check_config(config: ModelConfig, source: str) -> None:
    """Check every bound and how the numbers fit each other; ``source`` names the file.

    Raises:
        BadModelFile: a number is impossible; field ``field`` names it.
    """
    for name, low, high in _BOUNDS:
        _require(source, name, getattr(config, name), low, high)
    if config.head_dim % 2:
        raise _bad(source, "head_dim", config.head_dim, "an even number")
    if config.num_heads % config.num_kv_heads:
        limit = f"a divisor of num_heads = {config.num_heads}"
        raise _bad(source, "num_kv_heads", config.num_kv_heads, limit)
    _require(source, "rotary_dim", config.rotary_dim, 0, config.head_dim)
    if config.rotary_dim % 2:
        raise _bad(source, "rotary_dim", config.rotary_dim, "an even number")
    _require(source, "eos_ids (count)", len(config.eos_ids), 0, MAX_EOS_IDS)
    ids = [*config.eos_ids, *([] if config.bos_id is None else [config.bos_id])]
    for token_id in ids:
        _require(source, "bos_id / eos_ids", token_id, 0, config.vocab_size - 1)
    if config.layer_windows:
        count = config.num_layers
        _require(source, "layer_windows (count)", len(config.layer_windows), count, count)
        for window in config.layer_windows:
            _require(source, "layer_windows", window, 0, 2**27)
    if config.rope_scaling is not None:
        _check_rope(source, config.rope_scaling, config.rotary_size)
    if config.experts is not None:
        _check_experts(source, config.experts, config.num_layers)


def _check_experts(source: str, experts: Experts, num_layers: int) -> None:
    for name, low, high in _EXPERT_BOUNDS:
        _require(source, f"experts.{name}", getattr(experts, name), low, high)
    _require(source, "experts.num_experts", experts.num_experts, 1, MAX_EXPERTS // num_layers)
    most = min(experts.num_experts, MAX_CHOSEN)
    _require(source, "experts.num_chosen", experts.num_chosen, 1, most)
    for layer in experts.dense_layers:
        _require(source, "experts.dense_layers", layer, 0, num_layers - 1)


def _check_rope(source: str, scaling: RopeScaling, rotary_size: int) -> None:
    _require(source, "rope_scaling.factor", scaling.factor, 1e-6, 1e6)
    if scaling.type in ("llama3", "yarn", "longrope"):
        position = scaling.original_max_position
        # its logarithm divides in longrope's attention factor
        least = 2 if scaling.type == "longrope" else 1
        _require(source, "rope_scaling.original_max_position", position, least, 2**27)
    if scaling.type == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        _require(source, "rope_scaling.low_freq_factor", low, 1e-6, 1e6)
        if not low < high <= 1e6:
            limit = f"more than low_freq_factor = {low}"
            raise _bad(source, "rope_scaling.high_freq_factor", high, limit)
    if scaling.type in ("yarn", "longrope"):
        _require(
            source,
            "rope_scaling.attention_factor",
            scaling.effective_attention_factor,
            1e-6,
            1e6,
        )
    if scaling.type == "yarn":
        _require(source, "rope_scaling.beta_slow", scaling.beta_slow, 1e-6, 1e6)
        _require(source, "rope_scaling.beta_fast", scaling.beta_fast, scaling.beta_slow, 1e6)
    if scaling.type in ("factors", "longrope"):
        _check_factors(source, "rope_scaling.freq_factors", scaling.freq_factors, rotary_size)
    if scaling.type == "longrope":
        _check_factors(source, "rope_scaling.short_factors", scaling.short_factors, rotary_size)


def _check_factors(source: str, name: str, factors: list[float], rotary_size: int) -> None:
    _require(source, f"{name} (count)", len(factors), rotary_size // 2, rotary_size // 2)
    for factor in factors:
        _require(source, name, factor, 1e-6, 1e6)


def _require(source: str, name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # false for NaN too
        raise _bad(source, name, value, f"[{low}, {high}]")


def _bad(source: str, name: str, value: float, limit: str) -> BadModelFile:
    return BadModelFile(
        f"{name} of the model is impossible",
        field=name,
        value=value if -_LARGEST < value < _LARGEST else str(value)[:80],
        limit=limit,
        remedy="Fetch or convert the model again",
        file=source,
    )
