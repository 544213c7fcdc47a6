"""Pieces of several prompts on the CPU, in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridgen.errors import InternalError, OutOfDeviceMemory
from hybridgen.models.cuda.attention_calls import PlainCalls
from hybridgen.models.cuda.piece_inputs import piece_sizes
from hybridgen.models.cuda.prefill import MAX_PIECES
from hybridgen.models.cuda.streams import Mark
from hybridgen.models.device_engine import PromptChunk
from hybridgen.scheduler.device_row import MAX_CONTINUED
from hybridgen.scheduler.prefill_queue import PrefillQueue
from tests.models.cuda.test_decoder import NUM_BLOCKS, Model
from tests.models.tiny_model import random_ids, relative_error
from tests.scheduler.test_prefill_queue import make_row

MAX_TOKENS = 64
NUM_LOGITS_SLOTS = 2


def tables_of(lengths: list[int], seed: int) -> list[np.ndarray]:
    order = np.random.default_rng(seed).permutation(NUM_BLOCKS).astype(np.int32)
    counts = [-(-length // 16) for length in lengths]
    return np.split(order[: sum(counts)], np.cumsum(counts)[:-1])


def run_packed(model: Model, prompts: list[np.ndarray], tables: list[np.ndarray], most: int):
    """Logits and, per layer, KV of all prompts, in pieces as the batch would make them."""
    queue = PrefillQueue()
    for slot, ids in enumerate(prompts):
        queue.add(make_row(slot, len(ids)))
    logits: dict[int, torch.Tensor] = {}
    while parts := queue.take(most, NUM_LOGITS_SLOTS):
        chunks, slots = [], {}
        for row, start, stop in parts:
            if stop == row.num_tokens:
                slots[row.slot] = len(slots)
            ids, table = prompts[row.slot][start:stop], tables[row.slot]
            chunks.append(PromptChunk(ids, start, table, slots.get(row.slot, -1)))
        model.run_piece(chunks)
        for number, slot in slots.items():
            logits[number] = model.prefiller.logits[slot, : model.config.vocab_size].clone()
    return [logits[number] for number in range(len(prompts))]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=5),
    most=st.integers(5, MAX_TOKENS),
    seed=st.integers(0, 1000),
)
def test_packed_prompts_equal_prompts_one_by_one(lengths, most, seed):
    packed, alone = Model(num_layers=1), Model(num_layers=1)
    prompts = [random_ids(packed.config, n, seed=seed + i) for i, n in enumerate(lengths)]
    tables = tables_of(lengths, seed)
    results = run_packed(packed, prompts, tables, most)
    for ids, table, logits in zip(prompts, tables, results, strict=True):
        cuts = tuple(range(MAX_TOKENS, len(ids), MAX_TOKENS))
        assert relative_error(logits, alone.prefill(ids, table, cuts).double()) < 1e-5
    for one, other in zip(*(m.prefiller._model.caches for m in (packed, alone)), strict=True):
        for pages, wanted in zip(one, other, strict=True):
            # The last block is nobody's.
            found, right = pages[:NUM_BLOCKS], wanted[:NUM_BLOCKS]
            assert torch.equal(found.isnan(), right.isnan())
            assert torch.allclose(found, right, atol=1e-5, equal_nan=True)


def test_a_piece_without_memory_is_over_and_can_be_computed_anew(monkeypatch):
    monkeypatch.setattr(Mark, "record", lambda _mark, _stream: None)
    model, other = Model(num_layers=2), Model(num_layers=2)
    ids = random_ids(model.config, 20, seed=1)
    (table,) = tables_of([20], 1)
    chunk = PromptChunk(ids, 0, table, 0)
    prefiller = model.prefiller
    attend, calls = prefiller._attention.attend, []

    def fail_once(layout, cache, heads):
        calls.append(layout)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 MiB")
        return attend(layout, cache, heads)

    monkeypatch.setattr(prefiller._attention, "attend", fail_once)
    pieces = [prefiller.start([chunk]) for _ in range(MAX_PIECES)]
    assert pieces[0].advance(1)
    with pytest.raises(OutOfDeviceMemory, match="a piece of prefill"):
        pieces[0].advance(1)
    assert not pieces[0].advance(1)
    assert not prefiller.has_room()
    assert pieces[0].is_done()
    assert prefiller.has_room()
    while pieces[1].advance(1):
        pass
    wanted = other.prefill(ids, table, ())
    logits = prefiller.logits[0, : model.config.vocab_size]
    assert relative_error(logits, wanted.double()) < 1e-5


def test_a_piece_of_new_and_continued_prompts_equals_the_reference():
    model = Model(has_qkv_bias=True)
    lengths = [30, 21, 9, 40]
    prompts = [random_ids(model.config, n, seed=n) for n in lengths]
    tables = tables_of(lengths, 3)
    model.run_piece([PromptChunk(prompts[0][:17], 0, tables[0])])
    model.run_piece([PromptChunk(prompts[3][:32], 0, tables[3])])
    model.run_piece(
        [
            PromptChunk(prompts[0][17:], 17, tables[0], 1),
            PromptChunk(prompts[1][:20], 0, tables[1]),
            PromptChunk(prompts[3][32:], 32, tables[3], 0),
            PromptChunk(prompts[2], 0, tables[2]),
        ]
    )
    logits = model.prefiller.logits[:, : model.config.vocab_size]
    assert relative_error(logits[1], model.logits(prompts[0])[-1]) < 1e-5
    assert relative_error(logits[0], model.logits(prompts[3])[-1]) < 1e-5
    model.run_piece([PromptChunk(prompts[1][20:], 20, tables[1], 0)])
    assert relative_error(logits[0], model.logits(prompts[1])[-1]) < 1e-5


def test_layers_may_be_enqueued_several_at_once():
    model = Model(num_layers=5)
    ids, table = random_ids(model.config, 20), np.asarray([4, 2], np.int32)
    piece = model.prefiller.start([PromptChunk(ids, 0, table, 0)])
    piece.enqueue(3)
    assert not piece.is_done()
    piece.enqueue(3)
    assert piece.is_done()
    assert relative_error(model.prefiller.logits[0, :101], model.logits(ids)[-1]) < 1e-5


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [(0, 0)],
        [(0, 40), (0, 25)],
        [(0, 1)] * (NUM_LOGITS_SLOTS + 1),
        [(16, 1)] * (MAX_CONTINUED + 1),
        [(250, 20)],
    ],
)
def test_a_piece_that_does_not_fit_is_refused_and_keeps_no_buffers(chunks):
    model = Model()
    table = np.arange(20, dtype=np.int32)
    piece = [PromptChunk(np.zeros(n, np.int32), start, table, 0) for start, n in chunks]
    for _ in range(3):
        with pytest.raises(InternalError, match="does not fit"):
            model.prefiller.start(piece)
    assert model.prefiller.has_room()


def test_a_piece_without_room_is_refused():
    model = Model()
    piece = [PromptChunk(np.zeros(3, np.int32), 0, np.arange(1, dtype=np.int32))]
    for _ in range(MAX_PIECES):
        model.prefiller.start(piece)
    assert not model.prefiller.has_room()
    with pytest.raises(InternalError, match="too many pieces"):
        model.prefiller.start(piece)


def test_pieces_have_few_sizes():
    assert piece_sizes(30) == [30]
    assert piece_sizes(200) == [64, 128, 200]
    assert piece_sizes(512) == [64, 128, 256, 384, 512]


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True).map(sorted),
    segments=st.sampled_from([(), (16,), (32, 16), (5,)]),
    window=st.sampled_from([1, 8, 16, 48]),
)
def test_a_prompt_in_pieces_equals_the_reference_however_attention_is_split(cuts, segments, window):
    model = Model(num_layers=2)
    model.prefiller._attention.calls = PlainCalls(32**-0.5, segments, window)
    ids = random_ids(model.config, 100)
    (table,) = tables_of([100], 1)
    logits = model.prefill(ids, table, tuple(sorted({*cuts, MAX_TOKENS})))
    assert relative_error(logits, model.logits(ids)[-1]) < 1e-5


def test_rows_that_are_nobodys_take_nothing_from_what_was_there():
    model = Model()
    ids, table = random_ids(model.config, 21), np.asarray([4, 2], np.int32)
    for start, stop, slot in ((0, 20, -1), (20, 21, 0)):
        for buffer in (model.prefiller._hidden, model.prefiller._qkv, model.prefiller._inner):
            buffer.fill_(torch.nan)
        model.run_piece([PromptChunk(ids[start:stop], start, table, slot)])
        for buffer in (model.prefiller._hidden, model.prefiller._qkv, model.prefiller._inner):
            assert not buffer.isnan().any()
    assert relative_error(model.prefiller.logits[0, :101], model.logits(ids)[-1]) < 1e-5
