"""A GGUF file as a model: configuration, tokenizer, and the tensors that must be in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.families.registry import family_named, gguf_config_of
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_names import NOT_WEIGHTS
from hybridgen.formats.gguf_tokenizer import tokenizer_spec
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.model_info import ModelInfo, model_name
from hybridgen.formats.weight_check import check_weights
from hybridgen.formats.weight_parts import Parts, tensor_shapes, weight_parts
from hybridgen.models.config import ModelConfig


def inspect_gguf(path: Path) -> ModelInfo:
    """Read what ``path`` says about itself; no tensor is loaded.

    Raises:
        BadModelFile, UnsupportedModel, WeightsMismatch: see those; all before any large allocation.
    """
    with GgufFile(path) as gguf:
        _refuse_split(gguf)
        tokenizer = tokenizer_spec(gguf)
        config = gguf_config_of(gguf, tokenizer.bos_id, tokenizer.eos_ids)
        if tokenizer.vocab_size != config.vocab_size:
            limit = f"{config.vocab_size}, the rows of token_embd.weight"
            field = "tokenizer.ggml.tokens (length)"
            raise bad_field(path, field, "does not fit", tokenizer.vocab_size, limit)
        check_tensors(gguf, config)
        return ModelInfo(
            name=model_name(gguf.metadata.get("general.name"), path),
            path=str(path.resolve()),
            kind="gguf",
            config=config,
            tokenizer=tokenizer,
            weight_types=dict(Counter(item.element.name for item in gguf.tensors.values())),
            weight_bytes=sum(item.num_bytes for item in gguf.tensors.values()),
        )


def check_tensors(gguf: GgufFile, config: ModelConfig) -> None:
    """Compare the tensor table with what ``config`` asks for.

    Raises:
        WeightsMismatch: naming the tensor and both shapes.
    """
    found = {name: item.shape for name, item in gguf.tensors.items() if name not in NOT_WEIGHTS}
    check_weights(tensor_shapes(gguf_parts(gguf, config)), found, str(gguf.path))


def gguf_parts(gguf: GgufFile, config: ModelConfig) -> Parts:
    """Where each fused weight of ``config`` lies in the file."""
    family = family_named(config.architecture)
    return weight_parts(config, [family.gguf_names], gguf.tensors)


def _refuse_split(gguf: GgufFile) -> None:
    parts = gguf.metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise UnsupportedModel(
            "a GGUF model in several files is not supported",
            field="split.count",
            value=str(parts),
            limit=1,
            remedy="Join the parts with llama-gguf-split --merge",
            file=str(gguf.path),
        )
