"""All families, and which of them a model belongs to."""

from __future__ import annotations

from typing import Any

import msgspec

from hybridgen.errors import UnsupportedModel
from hybridgen.formats import gguf_config, huggingface_config
from hybridgen.formats.families.family import Family
from hybridgen.formats.families.gemma2 import GEMMA2
from hybridgen.formats.families.gemma3 import GEMMA3
from hybridgen.formats.families.llama import LLAMA
from hybridgen.formats.families.mistral import MISTRAL
from hybridgen.formats.families.mixtral import MIXTRAL
from hybridgen.formats.families.phi3 import PHI3
from hybridgen.formats.families.qwen2 import QWEN2
from hybridgen.formats.families.qwen2_moe import QWEN2_MOE
from hybridgen.formats.families.qwen3 import QWEN3
from hybridgen.formats.families.qwen3_moe import QWEN3_MOE
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    PHI3,
    GEMMA2,
    GEMMA3,
)


def family_named(name: str) -> Family:
    """The family with this ``ModelConfig.architecture``.

    Raises:
        UnsupportedModel: there is none.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise _unknown("architecture", name, [family.name for family in FAMILIES], "")


def huggingface_config_of(config: JsonFile, generation: JsonFile) -> ModelConfig:
    """The configuration that config.json and generation_config.json describe.

    Raises:
        UnsupportedModel: no family has this model_type, or the block does not cover the variant.
        BadModelFile: a key is missing, of the wrong type, or impossible.
    """
    model_type = config.text("model_type", "")
    for family in FAMILIES:
        if model_type in family.model_types:
            break
    else:
        known = [name for family in FAMILIES for name in family.model_types]
        raise _unknown("model_type", model_type, known, str(config.path))
    keys = family.text_config(config)
    keys = JsonFile(keys.path, {**family.defaults, **keys.keys})
    base = huggingface_config.base_config(keys, generation, family.name, family.handled_keys)
    base.validate(str(config.path))  # families compute with its numbers
    return _changed(base, dict(family.from_huggingface(keys, base)), str(config.path))


def gguf_config_of(gguf: GgufFile, bos_id: int | None, eos_ids: list[int]) -> ModelConfig:
    """The configuration that the metadata of ``gguf`` describes.

    Raises:
        UnsupportedModel: no family has this architecture, or the block does not cover the variant.
        BadModelFile: a key is missing, of the wrong type, or impossible.
    """
    keys = GgufKeys(gguf)
    has_experts = keys.integer("expert_count", 0) > 0
    named = [family for family in FAMILIES if family.gguf_architecture == keys.architecture]
    if not named:
        known = [family.gguf_architecture for family in FAMILIES]
        raise _unknown("general.architecture", keys.architecture, known, str(gguf.path))
    family = next((f for f in named if f.has_gguf_experts == has_experts), named[0])
    base = gguf_config.base_config(keys, family.name, family.handled_keys)
    base.validate(str(gguf.path))
    changes = {"bos_id": bos_id, "eos_ids": eos_ids, **family.from_gguf(keys, base)}
    return _changed(base, changes, str(gguf.path))


def _changed(base: ModelConfig, changes: dict[str, Any], source: str) -> ModelConfig:
    config = msgspec.structs.replace(base, **changes)
    config.validate(source)
    return config


def _unknown(field: str, value: str, known: list[str], source: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{field} of this model is not known",
        field=field,
        value=value[:80] or "nothing",
        limit=", ".join(dict.fromkeys(known)),
        remedy="Use a model of one of these families",
        file=source or None,
    )
