"""Python readers of damaged memory: a typed error or a value that can be, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hybridgen.errors import HybridGenError, IpcError
from hybridgen.ipc import header
from hybridgen.ipc.board import Board, ProcessState, Role
from hybridgen.ipc.header import RECORDS_OFFSET, Memory
from hybridgen.ipc.logit_ring import LogitRing, RowHeader
from hybridgen.ipc.logprob_ring import LogprobRing
from hybridgen.ipc.record_ring import RecordRing
from hybridgen.ipc.sampled_ring import SampledRing
from hybridgen.ipc.slot_table import (
    PARAMETERS_BYTES,
    PARAMETERS_OFFSET,
    SlotTable,
    SlotWord,
    unpack_finish,
)
from hybridgen.ipc.token_store import TokenStore, check_ids
from hybridgen.request import MAX_LOGPROBS, SamplingParams, TokenLogprob
from hybridgen.sampling import parameters
from tests.support.damage import damage

VOCAB = 300
NUM_ROUNDS = 400


def survive(buf: Memory, region: slice, read: Callable[[], object]) -> tuple[int, int]:
    """(rejected, accepted) looks at ``buf`` with ever other words of ``region`` damaged."""
    rng = random.Random(7)
    good = bytes(buf)
    num_rejected = 0
    for _ in range(NUM_ROUNDS):
        memoryview(buf)[:] = good
        for _ in range(rng.randrange(1, 4)):
            damage(rng, memoryview(buf)[region])
        try:
            read()
        except HybridGenError:
            num_rejected += 1
    return num_rejected, NUM_ROUNDS - num_rejected


HEADER = slice(0, 128)


@pytest.mark.parametrize(
    ("view", "buf"),
    [
        (SlotTable, SlotTable.in_memory(4, 64).buf),
        (TokenStore, TokenStore.in_memory(4, 64).buf),
        (LogitRing, LogitRing.in_memory(2, 4, VOCAB, 1, 64).buf),
        (SampledRing, SampledRing.in_memory(2, 4, 2).buf),
        (LogprobRing, LogprobRing.in_memory(4, 8).buf),
        (Board, Board.in_memory(4).buf),
        (RecordRing, RecordRing.in_memory(16, 24).buf),
    ],
)
def test_a_damaged_header_is_refused_or_what_it_says_fits(
    view: Callable[[Memory], object], buf: Memory
) -> None:
    num_rejected, _ = survive(buf, HEADER, lambda: view(buf))
    assert num_rejected > NUM_ROUNDS // 4


def test_a_damaged_record_of_the_board_reads_as_an_empty_one() -> None:
    board = Board.in_memory(1)
    board.line(0).claim(Role.GPU, 0, 1)
    board.line(0).set_state(ProcessState.READY)

    def read() -> None:
        seen = board.snapshot(0)
        assert isinstance(seen.role, Role)
        assert isinstance(board.state(0), ProcessState)
        board.histograms(0)
        board.progress(0)

    record = slice(RECORDS_OFFSET, RECORDS_OFFSET + 64)
    assert survive(board.buf, record, read) == (0, NUM_ROUNDS)
    assert board.num_rejected > NUM_ROUNDS // 4


def test_a_damaged_role_gives_no_counters_of_another() -> None:
    board = Board.in_memory(1)
    board.line(0).claim(Role.GPU, 0, 1)
    memoryview(board.buf)[RECORDS_OFFSET + 16] = 99
    seen = board.snapshot(0)
    assert (seen.state, seen.pid) == (ProcessState.EMPTY, 0)
    assert board.histograms(0) == {}
    assert board.num_rejected == 2


def test_damaged_words_of_a_slot_are_refused_or_can_be() -> None:
    slots, tokens = SlotTable.in_memory(2, 64), TokenStore.in_memory(2, 64)
    params = SamplingParams(
        stop=["end", "stop"], stop_token_ids=[1, 2], logit_bias={3: 1.0}, seed=1
    )
    parameters.pack(params, (2,), 1, slots.parameters(0), slots.grammar(0))
    slots.store(0, SlotWord.PROMPT_LEN, 4)
    slots.store(0, SlotWord.GENERATED, 6)

    def read() -> None:
        parameters.unpack(slots.parameters(0), slots.grammar(0))
        unpack_finish(slots.load(0, SlotWord.FINISH))
        prompt_len = slots.load(0, SlotWord.PROMPT_LEN)
        assert len(tokens.read(0, 0, prompt_len + slots.load(0, SlotWord.GENERATED))) <= 64

    start = RECORDS_OFFSET + PARAMETERS_OFFSET
    words_and_counts = slice(RECORDS_OFFSET, start + 64)
    stop_strings = slice(start + 64 + 16 * 4 + 64 * 4 + 512 * 8, start + PARAMETERS_BYTES)
    for region in (words_and_counts, stop_strings):
        num_rejected, num_accepted = survive(slots.buf, region, read)
        assert num_rejected > 10
        assert num_accepted > 10


def test_damaged_ids_are_refused() -> None:
    tokens = TokenStore.in_memory(2, 64)
    tokens.write(0, 0, range(64))

    def read() -> None:
        ids = tokens.read(0, 0, 64)
        check_ids(min(ids), max(ids), VOCAB)
        assert all(0 <= token_id < VOCAB for token_id in ids)

    row = slice(RECORDS_OFFSET, RECORDS_OFFSET + 256)
    num_rejected, num_accepted = survive(tokens.buf, row, read)
    assert num_rejected > NUM_ROUNDS // 2
    assert num_accepted > 0


@pytest.mark.parametrize(("lowest", "highest"), [(-1, 5), (0, VOCAB), (0, 2**31 - 1)])
def test_ids_outside_the_vocabulary_are_named(lowest: int, highest: int) -> None:
    check_ids(0, VOCAB - 1, VOCAB)
    with pytest.raises(IpcError, match="outside the vocabulary"):
        check_ids(lowest, highest, VOCAB)


def test_damaged_rings_are_refused_or_can_be() -> None:
    logits, sampled = LogitRing.in_memory(2, 4, VOCAB, 2), SampledRing.in_memory(2, 4, 2)
    logits.write_rows(1, [RowHeader(0, 0, 1, 5, 0), RowHeader(1, 1, 1, 5, 0)])
    logits.publish(1)
    sampled.write_result(1, 0, 17)
    sampled.mark_done(1, 0)

    def read_logits() -> None:
        assert len(logits.rows(1)) <= 4
        assert len(logits.logits(logits.latest)) == 4 * logits.row_floats
        logits.is_ready(1)
        logits.wait_published(0, 0, 100)

    def read_sampled() -> None:
        sampled.wait_done(1, 0, 0, 100)
        assert len(sampled.results(1, 4)) == 4

    assert survive(logits.buf, slice(128, RECORDS_OFFSET + 512), read_logits)[1] > 0
    assert survive(sampled.buf, slice(RECORDS_OFFSET, len(sampled.buf)), read_sampled)[1] > 0


def test_damaged_log_probabilities_are_none_or_whole() -> None:
    ring = LogprobRing.in_memory(1, 2)
    ring.write(0, 0, TokenLogprob(5, -0.5, [(5, -0.5), (6, -1.0)]))
    found = []

    def read() -> None:
        record = ring.read(0, 0)
        found.append(record)
        assert record is None or len(record.top) <= MAX_LOGPROBS

    survive(ring.buf, slice(RECORDS_OFFSET, RECORDS_OFFSET + 64), read)
    assert None in found
    assert any(found)


def test_a_header_cannot_ask_for_more_than_there_is() -> None:
    buf = TokenStore.in_memory(4, 64).buf
    for words in ((2**63, 64), (4, 2**62), (2**64 - 1, 2**64 - 1), (0, 64)):
        kind = header.SegmentKind.TOKENS
        header.write_header(buf, header.Header(kind, len(buf), 0, 0, words))
        with pytest.raises(HybridGenError):
            TokenStore(buf)
