"""Folders made from others, with tensors renamed or joined."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from hybridgen.formats.families.registry import huggingface_config_of
from hybridgen.formats.json_file import JsonFile
from hybridgen.models.config import ModelConfig

Weights = dict[str, np.ndarray]


def parse(config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """config.json (and generation_config.json) as a ``ModelConfig``."""
    here = Path("config.json")
    return huggingface_config_of(JsonFile(here, config), JsonFile(here, generation or {}))


def rewritten(
    folder: Path,
    target: Path,
    weights: Callable[[Weights], Weights],
    config: Callable[[dict[str, Any]], dict[str, Any]] = lambda keys: keys,
) -> Path:
    """A copy of ``folder`` with other tensors and another config.json."""
    shutil.copytree(folder, target)
    save_file(weights(load_file(folder / "model.safetensors")), target / "model.safetensors")
    keys = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps(config(keys)), encoding="utf-8")
    return target
