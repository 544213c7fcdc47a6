"""Models with windows and models of experts through a whole tree on a device, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen import SamplingParams
from hybridgen.models.config import Experts
from tests.gpu.device_tree import (
    IS_CUDA,
    OPTIONS,
    TREE_MARKS,
    TreeModel,
    make_tree_model,
    prompts_of,
    restarts,
)
from tests.models.cuda.test_block_options import GEMMA2, GEMMA3
from tests.support.eventually import eventually
from tests.support.running_tree import RunningTree, running_tree

pytestmark = TREE_MARKS

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
PROMPTS = prompts_of([1, 5, 40, 130, 131, 300])
FAMILIES: dict[str, dict[str, object]] = {
    "windows": {"layer_windows": [40, 24]},
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "mixtral": {"experts": Experts(num_experts=8, num_chosen=2, size=192)},
    "qwen2-moe": {
        "experts": Experts(
            num_experts=24, num_chosen=4, size=64, shared_size=128, is_share_normalized=False
        ),
        "has_qkv_bias": True,
    },
}


def check_all(tree: RunningTree, model: TreeModel, params: SamplingParams = GREEDY) -> None:
    streams = [tree.client.submit(prompt, params) for prompt in PROMPTS]
    for prompt, stream in zip(PROMPTS, streams, strict=True):
        ids = stream.result().token_ids
        assert len(ids) == params.max_tokens
        model.check_greedy(prompt, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_a_family_are_those_of_the_reference(family: str, tmp_path: Path) -> None:
    model = make_tree_model(tmp_path, family, **FAMILIES[family])
    with running_tree(model=str(model.path), **OPTIONS) as tree:
        check_all(tree, model)  # all at once
        first = tree.client.submit(PROMPTS[2], GREEDY).result()  # and one alone
        model.check_greedy(PROMPTS[2], first.token_ids)
        assert restarts(tree, "gpu-0") == 0


def test_rows_of_a_model_with_windows_are_longer_than_all_blocks_together(tmp_path: Path) -> None:
    model = make_tree_model(tmp_path, **FAMILIES["windows"])
    # A piece of prefill is 2,048 tokens on a device, and 64 on the CPU.
    num_blocks, num_tokens = (150, 2600) if IS_CUDA else (30, 700)
    options = {**OPTIONS, "num_kv_blocks": num_blocks, "max_num_seqs": 3}
    with running_tree(model=str(model.path), **options) as tree:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        check_all(tree, model, params)
        assert num_tokens > 16 * num_blocks
        eventually(lambda: tree.client.health().num_free_blocks == num_blocks)
