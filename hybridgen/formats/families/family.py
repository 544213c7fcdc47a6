"""What a family of models is to the readers: names, and what its configuration adds to Llama's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hybridgen.formats.gguf_keys import GgufKeys
from hybridgen.formats.gguf_names import STANDARD
from hybridgen.formats.huggingface_names import SEPARATE
from hybridgen.formats.json_file import JsonFile
from hybridgen.formats.weight_parts import TensorNames
from hybridgen.models.config import ModelConfig

#: Fields of ``ModelConfig`` and their values.
Changes = Mapping[str, Any]


def _nothing(_keys: object, _base: ModelConfig) -> Changes:
    return {}


def _itself(config: JsonFile) -> JsonFile:
    return config


class Family(NamedTuple):
    """All that sets a family apart; the defaults are those of Llama."""

    name: str
    """``ModelConfig.architecture``."""
    model_types: tuple[str, ...]
    """Its names in config.json (``model_type``)."""
    gguf_architecture: str
    """Its name in GGUF files (``general.architecture``)."""
    has_gguf_experts: bool = False
    """It is the family of the files of that name which have experts."""
    defaults: Mapping[str, Any] = {}
    """Keys of config.json that files may leave out; their values then."""
    handled_keys: frozenset[str] = frozenset()
    """Keys of variants, refused otherwise, that the two functions below understand."""
    text_config: Callable[[JsonFile], JsonFile] = _itself
    """config.json → the object with the keys of a text model."""
    from_huggingface: Callable[[JsonFile, ModelConfig], Changes] = _nothing
    """What is to change in a Llama-like configuration from config.json."""
    from_gguf: Callable[[GgufKeys, ModelConfig], Changes] = _nothing
    """The same from the metadata of a GGUF file."""
    huggingface_names: tuple[TensorNames, ...] = (SEPARATE,)
    """Ways in which folders name the tensors, the usual one first."""
    gguf_names: TensorNames = STANDARD
    spare_prefixes: tuple[str, ...] = ()
    """Tensors of folders that no text needs begin with one of these."""
