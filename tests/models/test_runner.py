from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.models.config import Experts
from tests.models.tiny_model import (
    full_config,
    prompt_logits,
    random_ids,
    random_tensors,
    tiny_config,
    tiny_runner,
)

CONFIG = tiny_config()
TENSORS = random_tensors(CONFIG)
FULL = full_config(
    experts=Experts(num_experts=6, num_chosen=2, size=40, shared_size=24, dense_layers=[1])
)
MODELS = {"plain": (CONFIG, TENSORS), "full": (FULL, random_tensors(FULL))}
BLOCKS = np.array([5, 0, 9, 3, 7, 1, 2], np.int32)
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cuts", [(16, 32, 48), (1,), (99,), (7, 8, 50, 51), tuple(range(1, 100))])
def test_logits_are_the_same_bits_however_the_prompt_is_cut(cuts, model, dtype):
    config, tensors = MODELS[model]
    runner = tiny_runner(config, tensors, dtype=dtype, max_rows=128)
    ids = random_ids(config, 100)
    whole = prompt_logits(runner, ids, BLOCKS)
    assert np.array_equal(prompt_logits(runner, ids, BLOCKS[::-1].copy(), cuts), whole)
    runner.close()


def test_chunks_larger_than_the_work_space_are_computed_in_pieces():
    large, small = (tiny_runner(CONFIG, TENSORS, max_rows=rows) for rows in (128, 3))
    ids = random_ids(CONFIG, 100)
    assert np.array_equal(prompt_logits(small, ids, BLOCKS), prompt_logits(large, ids, BLOCKS))
    large.close()
    small.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("max_rows", [64, 3])
def test_a_sequence_decodes_to_the_same_bits_alone_and_in_a_batch(max_rows, model, dtype):
    config, tensors = MODELS[model]
    runner = tiny_runner(config, tensors, dtype=dtype, max_rows=max_rows, num_blocks=80)
    lengths = np.array([1, 5, 16, 17, 31, 40, 2, 33, 20, 9, 48, 3, 12], np.int32)
    tables = np.arange(13 * 4, dtype=np.int32).reshape(13, 4) + 10
    prompts = [random_ids(config, length, seed) for seed, length in enumerate(lengths)]
    for prompt, table in zip(prompts, tables, strict=True):
        if len(prompt) > 1:
            runner.prefill(prompt[:-1], 0, table, None)
    last = np.array([prompt[-1] for prompt in prompts], np.int32)
    whole = np.zeros((13, config.vocab_size + 11), np.float32)
    runner.decode(last, lengths - 1, tables, whole[:, : config.vocab_size])
    assert not whole[:, config.vocab_size :].any()
    alone = np.empty((1, config.vocab_size), np.float32)
    for row in range(13):
        one = slice(row, row + 1)
        runner.decode(last[one], lengths[one] - 1, tables[one], alone)
        assert np.array_equal(alone[0], whole[row, : config.vocab_size])
        prefilled = prompt_logits(runner, prompts[row], np.arange(4, dtype=np.int32))
        assert np.array_equal(prefilled, alone[0])
    runner.close()


@pytest.mark.parametrize("model", MODELS)
def test_any_number_of_threads_gives_the_same_bits(model):
    config, tensors = MODELS[model]
    ids = random_ids(config, 60)
    rows = []
    for num_threads in (1, 2, 5):
        runner = tiny_runner(config, tensors, num_threads=num_threads)
        rows.append(prompt_logits(runner, ids, BLOCKS))
        runner.close()
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_blocks_of_one_sequence_are_not_touched_by_another():
    runner = tiny_runner(CONFIG, TENSORS)
    ids, other = random_ids(CONFIG, 33), random_ids(CONFIG, 90, seed=9)
    expected = prompt_logits(runner, ids, BLOCKS)
    prompt_logits(runner, ids[:32], BLOCKS)
    prompt_logits(runner, other, np.arange(20, 27, dtype=np.int32))
    out = np.empty((1, CONFIG.vocab_size), np.float32)
    runner.decode(ids[32:], np.array([32], np.int32), BLOCKS[None], out)
    assert np.array_equal(out[0], expected)
    runner.close()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("max_rows", [64, 7])
def test_blocks_before_every_window_may_belong_to_others(max_rows):
    config = tiny_config(layer_windows=[24, 40])
    runner = tiny_runner(config, random_tensors(config), max_rows=max_rows)
    ids = random_ids(config, 112)
    expected = prompt_logits(runner, ids, BLOCKS)
    cache = runner._model.cache
    for start in range(0, 112, 14):
        if start >= config.kept_window:
            past = BLOCKS[: (start + 1 - config.kept_window) // 16]
            cache.keys[:, past] = torch.nan
            cache.values[:, past] = torch.nan
        found = np.empty(config.vocab_size, np.float32)
        runner.prefill(ids[start : start + 14], start, BLOCKS, found)
    assert np.array_equal(found, expected)
    runner.close()


def test_numbers_out_of_bounds_never_reach_the_kernels():
    runner = tiny_runner(CONFIG, TENSORS, num_blocks=10)
    ids = random_ids(CONFIG, 4)
    with pytest.raises(InternalError, match="KV block"):
        runner.prefill(ids, 0, np.array([10], np.int32), None)
    out = np.empty((1, CONFIG.vocab_size), np.float32)
    table = np.zeros((1, 40), np.int32)
    past_the_end = np.array([CONFIG.max_position], np.int32)
    with pytest.raises(InternalError, match="position"):
        runner.decode(ids[:1], past_the_end, table, out)
    runner.close()
