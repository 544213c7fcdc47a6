"""A model with a window, in a tree that has blocks for little more than windows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hybridgen import LLM, SamplingParams
from hybridgen.client import Stream
from hybridgen.config import Config
from hybridgen.formats.convert import load_weights, prepare_weights
from hybridgen.formats.inspect import inspect_model
from hybridgen.models.reference import reference_logits
from tests.support.eventually import eventually
from tests.support.running_tree import RunningTree, running_tree
from tools.make_tiny_model import make_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PARAMS = SamplingParams(temperature=0, max_tokens=230, ignore_eos=True)
#: Window 16, pieces of 16 tokens: four blocks for a row of any length, and three rows.
MOST_BLOCKS = 1 + 1 + 2
OPTIONS = {
    "dtype": "float32",
    "max_num_seqs": 3,
    "prefill_chunk": 16,
    "num_kv_blocks": 3 * MOST_BLOCKS,
    "num_gateways": 0,
}


PROMPTS = [[3 + (7 * index + number) % 250 for index in range(150)] for number in range(5)]


def submit_all(tree: RunningTree) -> list[Stream]:
    return [tree.client.submit(prompt, PARAMS) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistral")
    return make_tiny_model(made, model_type="mistral", has_gguf=False).folder


def test_long_texts_from_few_blocks_are_those_of_the_reference(
    folder: Path, tmp_path: Path
) -> None:
    with LLM(str(folder), **OPTIONS, cache_dir=str(tmp_path)) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        again = llm.generate(PROMPTS[:1], PARAMS)
    info = inspect_model(str(folder), Config())
    assert info.config.kept_window == 16
    weights = load_weights(prepare_weights(info, "float32", tmp_path))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = prompt + output.token_ids
        assert len(ids) == 380 > 16 * OPTIONS["num_kv_blocks"]
        logits = reference_logits(info.config, weights, torch.tensor(ids[:-1]))
        chosen = logits[len(prompt) - 1 :].gather(1, torch.tensor(output.token_ids)[:, None])
        assert (logits[len(prompt) - 1 :].amax(1) - chosen[:, 0]).max() < 1e-3
    assert again[0].token_ids == outputs[0].token_ids


def test_texts_go_on_when_who_counts_the_blocks_or_holds_them_dies(
    folder: Path, tmp_path: Path
) -> None:
    with running_tree(model=str(folder), cache_dir=str(tmp_path), **OPTIONS) as tree:
        expected = [stream.result().token_ids for stream in submit_all(tree)]
        for role in ("coscheduler-0", "gpu-0", "coscheduler-0"):
            streams = submit_all(tree)
            begun = next(iter(streams[0]))
            old_pid = tree.kill(role)
            assert [stream.result().token_ids for stream in streams[1:]] == expected[1:]
            assert streams[0].result().token_ids == expected[0]
            assert begun.token_ids == expected[0][: len(begun.token_ids)]
            tree.wait_replaced(role, old_pid)

        def has_all_blocks() -> bool:
            """The last coscheduler counts what the gpu process tells it."""
            health = tree.client.health()
            return health.num_free_blocks == health.num_blocks == 3 * MOST_BLOCKS

        eventually(has_all_blocks, 10.0)
