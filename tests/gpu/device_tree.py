"""Trees on a device for tests: tiny models of known weights, and whether texts are right.

``TEST_DEVICE=cpu`` runs the same tests on the CPU device, to try them where there is no
other. What needs the device itself is skipped there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch

from hybridgen.config import Config
from hybridgen.formats.hybridgen_file import (
    SourceFacts,
    encode_file_header,
    file_metadata,
    stored_tensors,
)
from hybridgen.formats.mock_model import BOS_ID, EOS_ID, VOCAB_SIZE, mock_model
from hybridgen.models.config import ModelConfig
from hybridgen.models.reference import reference_logits
from tests.models.tiny_model import random_tensors, tiny_config
from tests.support.running_tree import RunningTree
from tools.text_check import first_difference

DEVICE = os.environ.get("TEST_DEVICE", "cuda")
IS_CUDA = DEVICE == "cuda"
TREE_MARKS = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(170),
    pytest.mark.skipif(IS_CUDA and not torch.cuda.is_available(), reason="needs a CUDA device"),
]
needs_cuda = pytest.mark.skipif(not IS_CUDA, reason="needs the device itself")

#: In float32 two ways of summing differ by less than this in a logit; those of a step spread by 1.
TIE = 1e-3
OPTIONS: dict[str, object] = {
    "device": DEVICE,
    "dtype": "float32",
    "max_num_seqs": 8,
    "num_kv_blocks": 1024,
    "num_samplers": 2,
    "num_gateways": 0,
    "disable_cpu_affinity": True,  # several trees may run side by side
    "cgroup": "false",
}


class TreeModel(NamedTuple):
    """A ``.hybridgen`` file with the mock model's vocabulary, and what is in it."""

    path: Path
    config: ModelConfig
    tensors: dict[str, torch.Tensor]

    def logits(self, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
        """float32 [len(ids), vocab_size]: from which each of ``ids`` behind ``prompt`` came."""
        whole = torch.tensor([*prompt, *ids[:-1]])
        return reference_logits(self.config, self.tensors, whole)[len(prompt) - 1 :].float()

    def check_greedy(self, prompt: Sequence[int], ids: Sequence[int]) -> None:
        """Each id is the likeliest after those before it, or as likely as the likeliest."""
        logits = self.logits(prompt, ids)
        chosen = logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert float((logits.amax(1) - chosen).max()) < TIE

    def check_same(
        self, prompt: Sequence[int], found: Sequence[int], wanted: Sequence[int]
    ) -> None:
        """Two greedy texts are one, up to a place where two tokens are as likely, if there is."""
        assert len(found) == len(wanted)
        place = first_difference(found, wanted)
        if place is not None:
            row = self.logits(prompt, found[: place + 1])[-1]
            assert abs(float(row[found[place]] - row[wanted[place]])) < TIE, f"token {place}"


def make_tree_model(folder: Path, name: str = "tiny", **changes: object) -> TreeModel:
    """Write a model of 512 tokens and heads that every kernel takes; ``changes`` of its shape."""
    shape: dict[str, object] = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 256, "intermediate_size": 320, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 64, "max_position": 4096, "bos_id": BOS_ID,
        "eos_ids": [EOS_ID], "is_embedding_tied": False,
    }  # fmt: skip
    config = tiny_config(**{**shape, **changes})
    tensors = random_tensors(config)
    info = msgspec.structs.replace(mock_model(Config()), kind="hybridgen", config=config)
    path = folder / f"{name}.hybridgen"
    metadata = file_metadata(info, "float32", SourceFacts(name="test"))
    with path.open("wb") as file:
        file.write(encode_file_header(info, "float32", metadata))
        for tensor in stored_tensors(config, "float32", is_int8=False):
            file.write(tensors[tensor].contiguous().numpy().tobytes())
    return TreeModel(path, config, tensors)


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Ids of single bytes, another course for each."""
    return [
        [(37 * number + 7 * i + i * i // 11) % 256 for i in range(length)]
        for number, length in enumerate(lengths)
    ]


def counter(tree: RunningTree, name: str, counted: str) -> int:
    """What a process of the tree has counted."""
    return next(p.counters[counted] for p in tree.client.ps().processes if p.name == name)


def restarts(tree: RunningTree, name: str) -> int:
    """How often a process was replaced."""
    return next(p.restarts for p in tree.client.ps().processes if p.name == name)
