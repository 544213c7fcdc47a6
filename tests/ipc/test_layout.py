"""The Python views and layout.h must agree, field by field."""

from __future__ import annotations

import pytest

from hybridgen import request
from hybridgen.ipc import (
    _native,
    board,
    header,
    histogram,
    logit_ring,
    logprob_ring,
    pulse,
    record_ring,
    sampled_ring,
    slot_table,
)
from hybridgen.sampling import parameters

NATIVE = _native.layout()


@pytest.mark.parametrize(
    ("name", "mirrored"),
    [
        ("HG_MAGIC", header.MAGIC),
        ("HG_LAYOUT_VERSION", header.LAYOUT_VERSION),
        ("HG_RECORDS_OFFSET", header.RECORDS_OFFSET),
        ("HG_POISON", header.POISON),
        ("hg_header", header._FORMAT.size),
        ("hg_header.magic", 0),
        ("hg_header.layout_version", 8),
        ("hg_header.kind", 16),
        ("hg_header.size_bytes", 24),
        ("hg_header.instance", 32),
        ("hg_header.epoch", 40),
        ("hg_header.geometry", 64),
        ("HG_SLOT_BYTES", slot_table.SLOT_BYTES),
        ("HG_GRAMMAR_BYTES", slot_table.MAX_GRAMMAR_BYTES),
        ("HG_ROW_GRAMMAR_SPENT", slot_table.RowError.GRAMMAR_SPENT),
        ("hg_sampling.grammar_kind", parameters._FLAGS_OFFSET + 24),
        ("hg_sampling.grammar_bytes", parameters._FLAGS_OFFSET + 28),
        ("hg_sampling.stop_regex_bytes", parameters._REGEX_OFFSET),
        ("hg_sampling.stop_regex", parameters._PATTERN_OFFSET),
        ("HG_STOP_REGEX_BYTES", request.MAX_STOP_REGEX_BYTES),
        ("hg_slot.sampling", slot_table.PARAMETERS_OFFSET),
        ("hg_sampling", slot_table.PARAMETERS_BYTES),
        ("hg_slot.client_id", slot_table._CLIENT_ID_OFFSET),
        ("hg_slot.request_id", slot_table._REQUEST_ID_OFFSET),
        ("hg_slot.generated", slot_table._SAMPLER_LINE),
        ("HG_LATEST_OFFSET", logit_ring._LATEST_OFFSET),
        ("HG_ANNOUNCED_OFFSET", logit_ring._ANNOUNCED_OFFSET),
        ("hg_step", logit_ring._STEP_BYTES),
        ("hg_step.ready", 0),
        ("hg_step.num_rows", logit_ring._NUM_ROWS_OFFSET),
        ("hg_row", logit_ring._ROW.size),
        ("hg_row", logit_ring._ROW_BYTES),
        ("hg_row.slot", 0),
        ("hg_row.lane", 4),
        ("hg_row.epoch", 8),
        ("hg_row.position", 16),
        ("hg_row.detokenizer", 24),
        ("hg_row.flags", 28),
        ("hg_step.whole", logit_ring._WHOLE_OFFSET),
        ("hg_cut.urgent", logit_ring._CUT_URGENT_OFFSET),
        ("hg_cut", logit_ring._CUT_BYTES),
        ("hg_cut", logit_ring._CUT.size),
        ("hg_cut.state", 0),
        ("hg_cut.count", 4),
        ("hg_cut.token_id", 8),
        ("hg_cut.top", 12),
        ("hg_cut.threshold", 16),
        ("hg_cut.scale", 20),
        ("hg_cut.total", 24),
        ("hg_cut.step", 32),
        ("HG_CUT_BYTES(0)", logit_ring._CUT_BYTES),
        ("HG_CUT_BYTES(8)", logit_ring._cut_bytes(8)),
        ("HG_CUT_NONE", logit_ring.CutState.NONE),
        ("HG_CUT_CANDIDATES", logit_ring.CutState.CANDIDATES),
        ("HG_CUT_TOKEN", logit_ring.CutState.TOKEN),
        ("HG_ROW_HAS_CUT", logit_ring.RowHas.CUT),
        ("HG_ROW_HAS_TOKEN", logit_ring.RowHas.TOKEN),
        ("hg_lane", sampled_ring._LANE_BYTES),
        ("hg_lane.done", 0),
        ("hg_sampled", sampled_ring._RESULT_BYTES),
        ("hg_sampled", sampled_ring._RESULT.size),
        ("hg_sampled", sampled_ring._TOKEN_AND_FLAGS.size),
        ("hg_sampled.flags", 4),
        ("hg_sampled.logprob", 8),
        ("HG_ROW_FINISHED", sampled_ring.RowFlag.FINISHED),
        ("HG_ROW_STALE", sampled_ring.RowFlag.STALE),
        ("HG_ROW_NO_TOKEN", sampled_ring.RowFlag.NO_TOKEN),
        ("HG_ROW_OK", slot_table.RowError.OK),
        ("HG_ROW_INVALID_LOGITS", slot_table.RowError.INVALID_LOGITS),
        ("hg_logprob", logprob_ring.RECORD_BYTES),
        ("hg_logprob.generated_index", 0),
        ("hg_logprob.token_id", logprob_ring._CHOSEN_OFFSET),
        ("hg_logprob.logprob", logprob_ring._CHOSEN_OFFSET + 4),
        ("hg_logprob.num_top", logprob_ring._CHOSEN_OFFSET + 8),
        ("hg_logprob.top", logprob_ring._TOP_OFFSET),
        ("hg_bias", logprob_ring._TOP.size),
        ("hg_process", board.LINE_BYTES),
        ("hg_process.pid", board._PID),
        ("hg_process.start_ticks", board._START_TICKS),
        ("hg_process.role", board._ROLE),
        ("hg_process.index", board._INDEX),
        ("hg_process.incarnation", board._INCARNATION),
        ("hg_process.state", board._STATE),
        ("hg_process.progress", board._PROGRESS),
        ("hg_process.busy_until_ns", board._BUSY_UNTIL),
        ("hg_process.counters", board._COUNTERS),
        ("hg_process.progress_ns", board._PROGRESS_NS),
        ("hg_process.beats", pulse.BEATS),
        ("hg_process.serving", pulse.SERVING),
        ("hg_process.stands_still", pulse.STANDS_STILL),
        ("HG_NUM_COUNTERS", board.MAX_COUNTERS),
        ("hg_process.histograms", board._HISTOGRAMS),
        ("HG_NUM_HISTOGRAMS", board.MAX_HISTOGRAMS),
        ("hg_histogram", histogram.HISTOGRAM_BYTES),
        ("hg_histogram.sum", histogram._SUM),
        ("HG_NUM_BUCKETS", histogram.MAX_BUCKETS),
        ("hg_ring.head", record_ring._HEAD_OFFSET - 128),
        ("hg_ring.tail", record_ring._TAIL_OFFSET - 128),
        ("HG_MAX_STOP_IDS", request.MAX_STOP_TOKEN_IDS),
        ("HG_MAX_STOP_STRINGS", request.MAX_STOP_STRINGS),
        ("HG_STOP_BYTES", request.MAX_STOP_STRINGS * request.MAX_STOP_BYTES),
        ("HG_MAX_BIAS", request.MAX_LOGIT_BIAS),
        ("HG_MAX_LOGPROBS", request.MAX_LOGPROBS),
    ],
)
def test_a_mirrored_number_is_the_native_one(name: str, mirrored: int) -> None:
    assert NATIVE[name] == mirrored


@pytest.mark.parametrize("word", slot_table.SlotWord)
def test_every_slot_word_is_where_native_code_has_it(word: slot_table.SlotWord) -> None:
    assert NATIVE[f"hg_slot.{word.name.lower()}"] == word


@pytest.mark.parametrize("kind", header.SegmentKind)
def test_every_segment_kind_has_its_native_number(kind: header.SegmentKind) -> None:
    assert NATIVE[f"HG_{kind.name}"] == kind


def test_every_role_has_a_table_of_counters_that_fits_its_record() -> None:
    assert set(board.COUNTER_NAMES) == set(board.Role)
    assert all(len(names) <= board.MAX_COUNTERS for names in board.COUNTER_NAMES.values())
