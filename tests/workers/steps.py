"""The gpu process's side of the ring, played by hand; and whole texts computed without a tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridgen.formats.mock_model import EOS_ID, VOCAB_SIZE
from hybridgen.ipc.logit_ring import RowHeader
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.models.mock import MockEngine
from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, parameters, reference
from tests.workers.workplace import Workplace


def publish(place: Workplace, step: int, rows: Sequence[tuple[RowHeader, int]]) -> None:
    """Publish a step; each row comes with its likeliest token."""
    ring = place.logits
    place.logits.begin(step)
    logits = np.asarray(ring.logits(step)).reshape(ring.max_rows, -1)
    for index, (_, top) in enumerate(rows):
        logits[index] = 0
        logits[index, top] = 50
    ring.write_rows(step, [row for row, _ in rows])
    ring.publish(step)


def next_row(place: Workplace, slot: int, lane: int = 0, ahead: int = 0) -> RowHeader:
    """The header of a slot's next token, or of one ``ahead`` of it."""
    load = place.slots.load
    position = load(slot, SlotWord.PROMPT_LEN) + load(slot, SlotWord.GENERATED) + ahead
    return RowHeader(slot, lane, load(slot, SlotWord.EPOCH), position, detokenizer=0)


def mock_text(prompt: Sequence[int], params: SamplingParams, num_tokens: int) -> list[int]:
    """The ids that the mock model continues ``prompt`` with: one sequence, one process."""
    ids = list(prompt)
    num_blocks = (len(ids) + num_tokens) // 16 + 1
    engine = MockEngine(VOCAB_SIZE, num_blocks)
    blocks = np.arange(num_blocks, dtype=np.int32)
    logits = np.empty(VOCAB_SIZE, np.float32)
    engine.prefill(np.asarray(ids, np.int32), 0, blocks, logits)
    while True:
        ids.append(_choose(logits, params, ids, len(prompt)))
        if len(ids) == len(prompt) + num_tokens or ids[-1] == EOS_ID:
            return ids[len(prompt) :]
        last, position = np.asarray([ids[-1]], np.int32), np.asarray([len(ids) - 1], np.int32)
        engine.decode(last, position, blocks[None], logits[None])


def _choose(
    logits: np.ndarray, params: SamplingParams, history: Sequence[int], prompt_len: int
) -> int:
    if params.temperature == 0:
        choice = reference.sample(logits, params, (EOS_ID,), history, prompt_len)
        assert choice.token_id is not None
        return choice.token_id
    record = bytearray(parameters.SAMPLING_BYTES)
    parameters.pack(params, (EOS_ID,), params.seed or 0, memoryview(record))
    return _native.sample_row(logits, record, np.asarray(history, np.int32), prompt_len)[0]
