from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError
from hybridgen.models.mock import MockEngine

IDS = np.random.default_rng(3).integers(0, 512, 70, dtype=np.int32)
BLOCKS = np.arange(5, dtype=np.int32)


def logits_after(engine: MockEngine, ids: np.ndarray, blocks: np.ndarray = BLOCKS) -> np.ndarray:
    out = np.empty(engine.vocab_size, np.float32)
    engine.prefill(ids, 0, blocks, out)
    return out


@given(cuts=st.sets(st.integers(1, 69)), blocks=st.permutations(range(12)))
def test_logits_do_not_depend_on_chunks_or_on_which_blocks_are_used(cuts, blocks):
    expected = logits_after(MockEngine(512, 12), IDS)
    engine = MockEngine(512, 12)
    table = np.array(blocks[:5], np.int32)
    out = np.empty(512, np.float32)
    edges = [0, *sorted(cuts), 70]
    for start, end in pairwise(edges):
        engine.prefill(IDS[start:end], start, table, out)
    assert np.array_equal(out, expected)


def test_decode_gives_the_same_row_as_prefill_in_any_company():
    engine = MockEngine(512, 40)
    lengths = [1, 2, 16, 17, 33, 70]
    tables = np.arange(40, dtype=np.int32)[:30].reshape(6, 5)
    for row, length in enumerate(lengths):
        if length > 1:
            engine.prefill(IDS[: length - 1], 0, tables[row], None)
    out = np.empty((6, 600), np.float32)[:, :512]
    positions = np.array(lengths, np.int32) - 1
    engine.decode(IDS[positions], positions, tables, out)
    for row, length in enumerate(lengths):
        assert np.array_equal(out[row], logits_after(MockEngine(512, 5), IDS[:length]))


def test_order_and_every_token_of_the_context_count():
    base = logits_after(MockEngine(512, 5), IDS)
    for position in (0, 15, 16, 40, 69):
        changed = IDS.copy()
        changed[position] = (changed[position] + 1) % 512
        assert not np.array_equal(logits_after(MockEngine(512, 5), changed), base)
    swapped = IDS.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert not np.array_equal(logits_after(MockEngine(512, 5), swapped), base)


@pytest.mark.parametrize("block", [0, 2, 4])
def test_a_block_overwritten_by_another_sequence_changes_the_output(block):
    engine = MockEngine(512, 6)
    engine.prefill(IDS[:69], 0, BLOCKS, None)
    engine.prefill(IDS[20:36], 0, np.array([block], np.int32), None)
    out = np.empty((1, 512), np.float32)
    engine.decode(IDS[69:], np.array([69], np.int32), BLOCKS[None], out)
    assert not np.array_equal(out[0], logits_after(MockEngine(512, 5), IDS))


def test_padding_of_a_block_table_is_not_followed():
    engine = MockEngine(512, 5)
    out = np.empty((1, 512), np.float32)
    table = np.array([[0, -1, 10**6]], np.int32)
    engine.decode(IDS[:1], np.array([0], np.int32), table, out)
    assert np.array_equal(out[0], logits_after(MockEngine(512, 5), IDS[:1]))


def test_eos_bias_moves_only_the_logit_of_end_of_text():
    plain = logits_after(MockEngine(512, 5), IDS)
    biased = logits_after(MockEngine(512, 5, eos_bias=100.0), IDS)
    assert biased.argmax() == 257
    assert np.array_equal(np.delete(biased, 257), np.delete(plain, 257))


def test_each_step_takes_the_time_that_was_set():
    slept = []
    engine = MockEngine(512, 5, step_us=1500, sleep=slept.append)
    logits_after(engine, IDS)
    engine.decode(IDS[:1], np.array([0], np.int32), BLOCKS[None], np.empty((1, 512), np.float32))
    assert slept == [pytest.approx(0.0015)] * 2


def test_eos_outside_the_vocabulary_is_refused():
    with pytest.raises(InternalError, match="eos_id"):
        MockEngine(100, 5)
