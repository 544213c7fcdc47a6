"""Rotary position embedding: the table of cosines and sines (Su et al. 2021)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridgen.models.config import ModelConfig, RopeScaling

_Doubles = npt.NDArray[np.float64]


class RopeTable(NamedTuple):
    """float32[num_positions, rotary_size / 2] each; made in float64 and rounded once."""

    cosines: npt.NDArray[np.float32]
    sines: npt.NDArray[np.float32]


def build_rope_table(
    config: ModelConfig, num_positions: int, *, is_local: bool = False
) -> RopeTable:
    """Angle of position p and dimension pair i is p · frequency[i].

    Args:
        config: of the model.
        num_positions: context length that is served; longrope goes by it.
        is_local: for the layers that rotate with ``local_rope_base``.
    """
    frequencies = rope_frequencies(config, num_positions, is_local=is_local)
    angles = np.outer(np.arange(num_positions, dtype=np.float64), frequencies)
    scaling = None if is_local else config.rope_scaling
    factor = scaling.effective_attention_factor if scaling else 1.0
    return RopeTable(
        (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)
    )


def rope_frequencies(
    config: ModelConfig, num_positions: int, *, is_local: bool = False
) -> _Doubles:
    """float64[rotary_size / 2], radians per position, scaling applied (see ``RopeScaling``)."""
    exponents = np.arange(0, config.rotary_size, 2, dtype=np.float64) / config.rotary_size
    base = config.local_rope_base if is_local else config.rope_base
    frequencies: _Doubles = np.power(base, -exponents)
    scaling = None if is_local else config.rope_scaling
    if scaling is None or scaling.type == "dynamic":
        return frequencies
    if scaling.type == "linear":
        return frequencies / scaling.factor
    if scaling.type == "factors":
        return frequencies / np.asarray(scaling.freq_factors, np.float64)
    if scaling.type == "longrope":
        is_long = num_positions > scaling.original_max_position
        factors = scaling.freq_factors if is_long else scaling.short_factors
        return frequencies / np.asarray(factors, np.float64)
    if scaling.type == "llama3":
        return _llama3(frequencies, scaling)
    return _yarn(frequencies, scaling, config)


def _llama3(frequencies: _Doubles, scaling: RopeScaling) -> _Doubles:
    """Turns within the training context decide: many are kept, few stretched, blended between."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    share = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    return frequencies * (share + (1 - share) / scaling.factor)


def _yarn(frequencies: _Doubles, scaling: RopeScaling, config: ModelConfig) -> _Doubles:
    """NTK-by-parts (Peng et al. 2023, arXiv 2309.00071, §3.2)."""

    def dimension_of(num_turns: float) -> float:
        """Dimension that turns so often within the training context."""
        positions = scaling.original_max_position / (num_turns * 2 * math.pi)
        return config.rotary_size * math.log(positions) / (2 * math.log(config.rope_base))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_size - 1)
    width = max(high - low, 0.001)
    stretched = np.clip((np.arange(config.rotary_size // 2) - low) / width, 0.0, 1.0)
    return np.asarray(frequencies * (1 - stretched + stretched / scaling.factor))
