from __future__ import annotations

from hybridgen.request import MAX_SEED, IdsPrompt, SamplingParams, TextPrompt
from hybridgen.server.generation import Generation


def test_choices_go_through_the_samples_of_each_prompt() -> None:
    prompts = [TextPrompt("a"), IdsPrompt([1])]
    generation = Generation(model=None, prompts=[*prompts], params=SamplingParams(seed=5), n=3)
    assert generation.num_choices == 6
    assert [generation.choice(index) for index in range(6)] == [
        (prompt, SamplingParams(seed=seed)) for prompt in prompts for seed in (5, 6, 7)
    ]


def test_seeds_count_on_beyond_the_largest() -> None:
    params = SamplingParams(seed=MAX_SEED)
    generation = Generation(model=None, prompts=[TextPrompt("a")], params=params, n=2)
    assert generation.choice(1)[1].seed == 0


def test_without_a_seed_none_is_invented() -> None:
    generation = Generation(model=None, prompts=[TextPrompt("a")], params=SamplingParams(), n=2)
    assert generation.choice(1)[1].seed is None
