"""Rows that share something with others in a tree on a device: blocks of a prompt, or a batch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import msgspec
import numpy as np
import pytest

from hybridgen import SamplingParams
from hybridgen.config import Config
from hybridgen.formats.mock_model import EOS_ID, VOCAB_SIZE
from hybridgen.request import Grammar
from hybridgen.sampling import reference
from tests.gpu.device_tree import (
    IS_CUDA,
    OPTIONS,
    TIE,
    TREE_MARKS,
    TreeModel,
    counter,
    make_tree_model,
    prompts_of,
)
from tests.support.eventually import eventually
from tests.support.running_tree import RunningTree, running_tree

pytestmark = TREE_MARKS

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=60, ignore_eos=True)
DIGITS = Grammar("regex", "[0-9]{12}-[a-f]{20}")
#: Of the tokens drawn from logits that differ in the last bits, so many may be others.
MOST_MOVED = 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TreeModel:
    return make_tree_model(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module", params=["false", "true"])
def tree(model: TreeModel, request: pytest.FixtureRequest) -> Iterator[RunningTree]:
    place = {"sample_on_gpu": request.param}
    with running_tree(model=str(model.path), **OPTIONS, **place) as running:
        yield running


def prefilled(tree: RunningTree) -> int:
    return counter(tree, "gpu-0", "prefill_tokens")


def test_a_prompt_that_others_have_had_is_computed_once_and_gives_the_same_ids(
    tree: RunningTree, model: TreeModel
) -> None:
    one, other = (prompt[:400] for prompt in prompts_of([401, 402, 403])[1:])
    before = prefilled(tree)
    first = tree.client.submit(one, GREEDY).result()
    eventually(lambda: prefilled(tree) == before + 400)
    model.check_greedy(one, first.token_ids)
    branch = one[:300] + other[:100]  # on a device less than 256 tokens are not shared
    outputs = [s.result() for s in [tree.client.submit(p, GREEDY) for p in (one, one, branch)]]
    assert [first.num_cached_tokens, *(o.num_cached_tokens for o in outputs)] == [0, 384, 384, 288]
    eventually(lambda: prefilled(tree) == before + 400 + 16 + 16 + 112)
    for output in outputs[:2]:
        model.check_same(one, output.token_ids, first.token_ids)
    model.check_greedy(branch, outputs[2].token_ids)


def test_eight_of_one_prompt_at_once_compute_it_once(tree: RunningTree, model: TreeModel) -> None:
    prompt = prompts_of([400])[0]
    before = prefilled(tree)
    streams = [tree.client.submit(prompt, GREEDY) for _ in range(8)]
    for stream in streams:
        model.check_greedy(prompt, stream.result().token_ids)
    eventually(lambda: prefilled(tree) == before + 400 + 7 * 16)


@pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is not installed")
def test_rows_with_and_without_a_grammar_are_drawn_from_the_same_logits_in_one_batch(
    tree: RunningTree, model: TreeModel
) -> None:
    plain, bound = [GREEDY, SEEDED], []
    for params in plain:
        ending = {"grammar": DIGITS, "ignore_eos": False}
        bound.append(msgspec.structs.replace(params, **ending))
    params = [*plain, *bound] * 2
    prompts = prompts_of([20, 30, 40, 50, 60, 70, 80, 90])
    streams = [tree.client.submit(*pair) for pair in zip(prompts, params, strict=True)]
    num_moved = 0
    for prompt, wanted, stream in zip(prompts, params, streams, strict=True):
        output = stream.result()
        num_moved += count_moved(model, prompt, output.token_ids, wanted)
        if wanted.grammar is None:
            assert len(output.token_ids) == 60
        else:
            assert output.token_ids[-1] == EOS_ID
            digits, _, letters = output.text.partition("-")
            assert (len(digits), digits.isdigit(), len(letters)) == (12, True, 20)
    assert num_moved <= MOST_MOVED
    if IS_CUDA:
        samplers = ("sampler-0", "sampler-1")
        assert sum(counter(tree, name, "cut_rows") for name in samplers) > 0


def count_moved(model: TreeModel, prompt: list[int], ids: list[int], params: SamplingParams) -> int:
    """How many of ``ids`` are not what the definition draws from the model's logits."""
    logits = model.logits(prompt, ids).numpy()
    if params.grammar is not None:
        logits[~allowed(params.grammar, ids)] = -np.inf
    num_moved = 0
    for index, row in enumerate(logits):
        history = [*prompt, *ids[:index]]
        choice = reference.sample(row, params, [EOS_ID], history, len(prompt)).token_id
        is_tied = params.temperature == 0 and row.max() - row[ids[index]] < TIE
        num_moved += choice != ids[index] and not is_tied
    return num_moved


def allowed(grammar: Grammar, ids: list[int]) -> np.ndarray:
    """bool [len(ids), vocab_size]: what the grammar lets follow at each place."""
    from hybridgen.sampling.lazy_matchers import LazyMatchers

    matcher = LazyMatchers("mock", Config()).start(grammar)
    rows = []
    for token_id in ids:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        rows.append(np.unpackbits(mask, bitorder="little")[:VOCAB_SIZE].astype(bool))
        matcher.consume_token(token_id)
    return np.asarray(rows)
