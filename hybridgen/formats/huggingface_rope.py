"""Rotary position embedding as config.json describes it → ``RopeScaling``.

Kinds and defaults after transformers' modeling_rope_utils.
"""

from __future__ import annotations

import math

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import RopeKind, RopeScaling

_KINDS: dict[str, RopeKind] = {
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    "dynamic": "dynamic",
    "longrope": "longrope",
    "su": "longrope",  # its name in the first Phi-3 folders
}


def rope(config: JsonFile) -> tuple[float, RopeScaling | None]:
    """(base, scaling) from rope_parameters (transformers 5) or rope_theta + rope_scaling.

    Raises:
        UnsupportedModel: a kind of scaling that is not implemented.
        BadModelFile: a key is missing or of the wrong type.
    """
    section = rope_section(config)
    base = section.real("rope_theta", config.real("rope_theta", 10_000.0))
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return base, None
    if kind not in _KINDS:
        raise UnsupportedModel(
            "rope_scaling.rope_type of this model is not implemented",
            field="rope_scaling.rope_type",
            value=kind[:80],
            limit=", ".join(["default", *_KINDS]),
            remedy="Use a model with one of these rope scalings",
            file=str(config.path),
        )
    length = config.integer("max_position_embeddings", 2048)
    given = config.integer("original_max_position_embeddings", length)
    original = section.integer("original_max_position_embeddings", given)
    if _KINDS[kind] == "longrope":
        return base, _longrope(section, length, original)
    return base, _scaling(section, _KINDS[kind], length, original)


def rope_section(config: JsonFile) -> JsonFile:
    """The object that holds the parameters; empty if there is none."""
    return config.section("rope_parameters", "rope_scaling") or JsonFile(config.path, {})


def _scaling(section: JsonFile, kind: RopeKind, length: int, original: int) -> RopeScaling:
    is_yarn = kind == "yarn"
    factor = section.real("factor", length / original if is_yarn and original > 0 else None)
    is_llama3 = kind == "llama3"
    return RopeScaling(
        type=kind,
        factor=factor,
        original_max_position=original,
        low_freq_factor=section.real("low_freq_factor", None if is_llama3 else 1.0),
        high_freq_factor=section.real("high_freq_factor", None if is_llama3 else 4.0),
        beta_fast=section.real("beta_fast", 32.0),
        beta_slow=section.real("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(section, factor) if is_yarn else None,
        is_truncated=section.flag("truncate", True),
    )


def _yarn_attention_factor(section: JsonFile, factor: float) -> float | None:
    """Given, or from mscale and mscale_all_dim, or None for the usual default."""
    if section.keys.get("attention_factor") is not None:
        return section.real("attention_factor")
    scale, scale_all = section.real("mscale", 0.0), section.real("mscale_all_dim", 0.0)
    if not scale or not scale_all or factor <= 1.0:
        return None
    whole = 0.1 * scale_all * math.log(factor) + 1.0
    if whole == 0.0:
        raise section.bad("mscale_all_dim", "is impossible", scale_all)
    return (0.1 * scale * math.log(factor) + 1.0) / whole


def _longrope(section: JsonFile, length: int, original: int) -> RopeScaling:
    factor = section.real("factor", length / original if original > 0 else 1.0)
    is_given = section.keys.get("attention_factor") is not None
    return RopeScaling(
        type="longrope",
        factor=factor,
        original_max_position=original,
        attention_factor=section.real("attention_factor") if is_given else None,
        freq_factors=_numbers(section, "long_factor"),
        short_factors=_numbers(section, "short_factor"),
    )


def _numbers(section: JsonFile, key: str) -> list[float]:
    values = section.keys.get(key)
    if not isinstance(values, list):
        raise section.bad(key, "is not a list of numbers", values)
    return [JsonFile(section.path, {key: value}).real(key) for value in values]
