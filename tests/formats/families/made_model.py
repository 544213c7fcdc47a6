"""A tiny model's files beside the same model in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from transformers import PreTrainedModel

from hybridgen.config import Config
from hybridgen.formats.convert import convert_model, load_weights, prepare_weights
from hybridgen.formats.inspect import inspect_model
from hybridgen.models.config import ModelConfig
from tools.make_tiny_model import TinyModel, make_tiny_model

Tensors = dict[str, torch.Tensor]


class MadeModel(NamedTuple):
    files: TinyModel
    peer: PreTrainedModel

    @torch.no_grad()
    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """[n, vocab_size] of transformers, float32, at every position of ``ids`` int64[n]."""
        return self.peer(ids[None]).logits[0]


def made_model(folder: Path, **changes: object) -> MadeModel:
    files = make_tiny_model(folder, **changes)
    return MadeModel(files, load_peer(files.folder))


def load_peer(folder: Path) -> PreTrainedModel:
    # Eager attention is the one that knows of soft caps.
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def loaded(source: Path, folder: Path) -> tuple[ModelConfig, Tensors]:
    """``source`` as the engine gets it: inspected, prepared below ``folder``, loaded."""
    info = inspect_model(str(source), Config())
    weights = load_weights(prepare_weights(info, "float32", folder / "cache"))
    return info.config, dict(weights.items())


def converted(source: Path, folder: Path) -> tuple[ModelConfig, Tensors]:
    """The same by way of a file that ``hybridgen convert`` writes."""
    info = inspect_model(str(source), Config())
    output = folder / f"{source.name}.hybridgen"
    convert_model(info, "float32", output)
    return loaded(output, folder)


def random_ids(vocab_size: int, num_tokens: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (num_tokens,), generator=generator)
