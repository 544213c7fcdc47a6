"""A row's cut gives the token that the whole row would, or none at all."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.ipc import _native as _native_ipc
from hybridgen.ipc.logit_ring import Cut, CutState, RowHas, RowHeader
from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.ipc.slot_table import Finish, RowError, SlotWord
from hybridgen.request import FinishReason, SamplingParams
from tests.sampling.cut_oracle import make_cut, proves, weights
from tests.sampling.rows import VARIANTS, Row, random_logits
from tests.sampling.step_fixture import EOS, VOCAB, Segments, peaked

CAPACITY = 64
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.8, top_k=20, seed=11)
NO_TOKEN = RowFlag.FINISHED | RowFlag.NO_TOKEN
LOGITS = np.random.default_rng(8).normal(0, 2, VOCAB).astype(np.float32)
CUT = make_cut(LOGITS, 0.8, 40, CAPACITY)


def opened(params: SamplingParams = DRAWN, flags: int = RowHas.CUT) -> tuple[Segments, RowHeader]:
    """One request in slot 0, and the header of its first row."""
    s = Segments(cut_capacity=CAPACITY)
    s.open_slot(0, [5], params)
    return s, s.row(0)._replace(flags=flags)


def whole_token(params: SamplingParams = DRAWN) -> int:
    return Row(LOGITS, params, [5], 1, (EOS,)).token()


def plain_params(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    """Parameters that change no logit, each off half of the time."""

    def pick(off: float, *choices: float) -> float:
        return off if rng.random() < 0.5 else choices[rng.integers(len(choices))]

    return SamplingParams(
        temperature=pick(float(rng.uniform(0.05, 2)), 0.0, 1e-3, 0.2, 1.0, 100.0),
        top_k=int(pick(0, 1, 2, CAPACITY, int(rng.integers(1, 2 * vocab_size)), vocab_size)),
        top_p=pick(1.0, 0.9, 0.5, 1e-6, 0.999999, float(rng.uniform(0.01, 1))),
        min_p=pick(0.0, 0.05, 1.0, 1e-9, 1e-12, float(rng.uniform(0, 1))),
        seed=int(rng.integers(0, 2**63)),
    )


@given(
    seed=st.integers(0, 2**32),
    vocab_size=st.sampled_from([1, 17, 300, 1024, 3000]),
    wanted=st.integers(1, 80),
    variant=st.sampled_from(VARIANTS),
)
def test_the_token_is_that_of_the_whole_row_wherever_the_cut_proves_it(
    seed: int, vocab_size: int, wanted: int, variant: int
) -> None:
    rng = np.random.default_rng(seed)
    logits, params = random_logits(rng, vocab_size), plain_params(rng, vocab_size)
    s = Segments(cut_capacity=CAPACITY, vocab_size=vocab_size)
    s.open_slot(0, [0], params)
    cut = make_cut(logits, params.temperature, wanted, CAPACITY)
    s.publish_cuts(1, [s.row(0)._replace(flags=RowHas.CUT)], [cut])
    num_cut, num_left = s.sample_ready(1, variant=variant)[5:]
    is_proved = proves(cut, params, vocab_size)
    assert (num_cut, num_left) == (int(is_proved), int(not is_proved))
    if not is_proved:
        s.complete(1, logits[None])
        assert s.sample_ready(1, is_rest=True, variant=variant)[0] == 1
    token_id = Row(logits, params, [0], 1, (EOS,)).token(variant)
    assert s.output(0) == ([token_id] if token_id >= 0 else [])
    assert is_proved <= (token_id >= 0)
    assert s.sampled.done(1, 0) == 1


@pytest.mark.parametrize(("wanted", "is_read"), [(19, True), (20, False), (21, False)])
def test_the_whole_row_is_read_only_where_the_cut_is_too_small(wanted: int, is_read: bool) -> None:
    s, row = opened()
    s.publish_cuts(1, [row], [make_cut(LOGITS, 0.8, wanted, CAPACITY)])
    s.complete(1, np.full((1, VOCAB), np.nan, np.float32))
    assert s.sample(1)[4] == int(is_read)
    assert s.output(0) == ([] if is_read else [whole_token()])


def test_top_p_is_proved_by_the_last_bit_of_the_candidates_weight() -> None:
    cut = make_cut(LOGITS, 0.8, 40, CAPACITY)
    inside = float(weights(np.array(cut.values, np.float32), cut.top, 0.8).sum(dtype=np.float64))
    most = np.float32(inside / cut.total)
    while float(most) * cut.total > inside:
        most = np.nextafter(most, np.float32(0))
    for top_p, num_cut in ((most, 1), (np.nextafter(most, np.float32(1)), 0)):
        s, row = opened(SamplingParams(temperature=0.8, top_p=float(top_p), seed=11))
        s.publish_cuts(1, [row], [cut])
        assert s.sample_ready(1)[5] == num_cut


def test_min_p_proves_nothing_within_one_step_of_the_grid_of_weights() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[:3] = 0.0, -23.8, -23.9  # the last two weigh 2⁻³⁴
    cut = make_cut(logits, 1.0, 2, CAPACITY)
    assert cut.total == 1 + 2 * 2.0**-34
    for steps, num_cut in ((1.5, 0), (2.5, 1)):
        s, row = opened(SamplingParams(temperature=1.0, min_p=steps * 2.0**-34, seed=11))
        s.publish_cuts(1, [row], [cut])
        assert s.sample_ready(1)[5] == num_cut


def test_equal_logits_are_told_apart_by_their_ids_alone() -> None:
    logits = np.round(LOGITS)
    cut = make_cut(logits, 1.5, 9, CAPACITY)
    assert len(cut.ids) > 9  # some of the least likely are left out though they are as likely
    for seed in range(20):
        params = SamplingParams(temperature=1.5, top_k=9, top_p=0.8, seed=seed)
        s, row = opened(params)
        s.publish_cuts(1, [row], [cut])
        assert s.sample_ready(1)[5] == 1
        assert s.output(0) == [Row(logits, params, [5], 1, (EOS,)).token()]


def test_temperature_alone_is_proved_where_everything_else_weighs_nothing() -> None:
    params = SamplingParams(temperature=0.01, seed=5)
    s, row = opened(params)
    s.publish_cuts(1, [row], [make_cut(LOGITS, 0.01, 40, CAPACITY)])
    assert s.sample_ready(1)[5] == 1
    assert s.output(0) == [whole_token(params)]


def test_an_invalid_row_has_no_cut_and_is_found_out_by_the_whole_row() -> None:
    s, row = opened()
    logits = LOGITS.copy()
    logits[7] = np.nan
    cut = make_cut(logits, 0.8, 40, CAPACITY)
    assert cut.state == CutState.NONE
    s.publish_cuts(1, [row], [cut])
    assert s.sample_ready(1)[5:] == (0, 1)
    s.complete(1, logits[None])
    assert s.sample_ready(1, is_rest=True) == (1, 0, 1, 0, 1, 0, 0)
    assert s.sampled.results(1, 1) == [(-1, NO_TOKEN)]
    assert s.finish(0) == Finish(FinishReason.ERROR, RowError.INVALID_LOGITS, 0)


@pytest.mark.parametrize("flags", [RowHas.TOKEN, RowHas.CUT | RowHas.TOKEN])
def test_a_token_that_the_device_goes_on_with_is_taken(flags: int) -> None:
    s, row = opened(flags=flags)
    other = (whole_token() + 1) % VOCAB
    s.publish_cuts(1, [row], [Cut(CutState.TOKEN, other, 0.0, 0.0, 0.0, 0.0, 1)])
    assert s.sample_ready(1) == (1, 1, 1, 0, 0, 1, 0)
    assert s.sampled.results(1, 1) == [(other, 0)]
    assert s.output(0) == [other]


@pytest.mark.parametrize(
    "cut",
    [
        CUT,
        CUT._replace(state=CutState.NONE),
        CUT._replace(state=CutState.TOKEN, token_id=VOCAB),
        CUT._replace(state=CutState.TOKEN, token_id=-1),
        CUT._replace(state=CutState.TOKEN, token_id=1, step=4),
    ],
)
def test_a_row_that_got_no_token_from_the_device_is_invalid_at_once(cut: Cut) -> None:
    s, row = opened(flags=RowHas.CUT | RowHas.TOKEN)
    s.publish_cuts(1, [row], [cut])
    assert s.sample_ready(1) == (1, 0, 1, 0, 1, 0, 0)
    assert s.finish(0).row_error == RowError.INVALID_LOGITS
    assert s.sampled.done(1, 0) == 1


def test_a_token_last_of_its_request_finishes_it() -> None:
    s, row = opened(flags=RowHas.CUT | RowHas.TOKEN)
    s.publish_cuts(1, [row], [Cut(CutState.TOKEN, EOS, 0.0, 0.0, 0.0, 0.0, 1)])
    s.sample_ready(1)
    assert s.sampled.results(1, 1) == [(EOS, RowFlag.FINISHED)]
    assert s.finish(0) == Finish(FinishReason.STOP, RowError.OK, 1)


def test_candidates_beside_a_token_serve_a_row_that_does_not_depend_on_it() -> None:
    s, row = opened()
    s.publish_cuts(1, [row], [CUT._replace(state=CutState.TOKEN, token_id=1)])
    assert s.sample_ready(1)[5] == 1
    assert s.output(0) == [whole_token()]


def damaged() -> dict[str, Cut]:
    ids, values = list(CUT.ids), list(CUT.values)
    swapped = [ids[1], ids[0], *ids[2:]]
    return {
        "another step": CUT._replace(step=4),
        "another temperature": make_cut(LOGITS, 0.9, 40, CAPACITY),
        "no candidates": CUT._replace(ids=(), values=()),
        "an unknown state": CUT._replace(state=9),  # type: ignore[arg-type]
        "ids out of order": CUT._replace(ids=swapped),
        "an id twice": CUT._replace(ids=[ids[1], *ids[1:]]),
        "an id beyond the vocabulary": CUT._replace(ids=[*ids[:-1], VOCAB]),
        "a negative id": CUT._replace(ids=[-1, *ids[1:]]),
        "a NaN": CUT._replace(values=[math.nan, *values[1:]]),
        "a logit above the top": CUT._replace(values=[99.0, *values[1:]]),
        "a logit below the threshold": CUT._replace(values=[-99.0, *values[1:]]),
        "a NaN for a threshold": CUT._replace(threshold=math.nan),
        "no threshold": CUT._replace(threshold=-math.inf, values=[-math.inf, *values[1:]]),
        "an infinite top": CUT._replace(top=math.inf, values=[math.inf, *values[1:]]),
        "a top that no candidate has": CUT._replace(top=CUT.top + 1),
        "no total": CUT._replace(total=0.0),
        "a NaN for a total": CUT._replace(total=math.nan),
    }


@pytest.mark.parametrize("damage", damaged())
def test_a_cut_that_is_not_this_rows_or_contradicts_itself_is_not_believed(damage: str) -> None:
    s, row = opened()
    s.publish_cuts(1, [row], [damaged()[damage]])
    assert s.sample_ready(1)[5:] == (0, 1)
    s.complete(1, LOGITS[None])
    s.sample_ready(1, is_rest=True)
    assert s.output(0) == [whole_token()]


def test_more_candidates_than_a_cut_has_room_for_are_not_read() -> None:
    s, row = opened()
    cut = make_cut(LOGITS - 1.8, 0.8, CAPACITY, CAPACITY)
    assert cut.threshold < 0.0 < cut.top
    s.publish_cuts(1, [row], [cut])
    start = s.logits.cut_offset_of(1)
    struct.pack_into("=I", s.logits.buf, start + 4, CAPACITY + 1)
    # What stands behind values and ids would pass for one more of each.
    struct.pack_into("=I", s.logits.buf, start + s.logits.cut_bytes, VOCAB - 1)
    assert s.sample_ready(1)[5:] == (0, 1)


@pytest.mark.parametrize("capacity", [12, 1 << 20, 1 << 60, CAPACITY + 8])
def test_a_geometry_whose_cuts_do_not_fit_is_refused(capacity: int) -> None:
    s, row = opened()
    s.publish_cuts(1, [row], [CUT])
    before = s.snapshot()
    struct.pack_into("=Q", s.logits.buf, 64 + 7 * 8, capacity)
    with pytest.raises(ValueError, match="geometries"):
        s.sample_ready(1)
    assert s.snapshot() == before


def test_a_vocabulary_too_large_for_exact_sums_is_refused() -> None:
    s, _ = opened()
    struct.pack_into("=Q", s.logits.buf, 64 + 2 * 8, (1 << 19) + 1)
    with pytest.raises(ValueError, match="a vocabulary of 524289; the sampler's limit is 524288"):
        s.sample_ready(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": 0},
        {"logit_bias": {3: 1.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"min_tokens": 1},
    ],
)
def test_parameters_that_change_logits_or_ask_for_them_need_the_whole_row(
    changes: dict[str, object],
) -> None:
    params = SamplingParams(temperature=0.8, top_k=20, seed=11, **changes)  # type: ignore[arg-type]
    s, row = opened(params)
    s.publish_cuts(1, [row], [CUT])
    assert s.sample_ready(1)[5:] == (0, 1)
    s.complete(1, LOGITS[None])
    s.sample_ready(1, is_rest=True)
    assert s.output(0) == [whole_token(params)]


def test_a_ban_that_is_over_does_not() -> None:
    s = Segments(cut_capacity=CAPACITY)
    s.open_slot(0, [5], SamplingParams(temperature=0.8, top_k=20, seed=11, min_tokens=1))
    for step, num_cut in ((1, 0), (2, 1)):
        cut = CUT._replace(step=step)
        s.publish_cuts(step, [s.row(0)._replace(flags=RowHas.CUT)], [cut])
        assert s.sample_ready(step)[5] == num_cut
        s.complete(step, LOGITS[None])
        s.sample_ready(step, is_rest=True)


def test_rows_that_need_no_complete_row_do_not_wait_for_those_that_do() -> None:
    s = Segments(cut_capacity=CAPACITY)
    for slot in range(3):
        s.open_slot(slot, [5], GREEDY)
    logits = peaked(20, 30, 40)
    cuts = [make_cut(row, 0.0, 3, CAPACITY) for row in logits]
    rows = [s.row(slot)._replace(flags=0 if slot == 1 else RowHas.CUT) for slot in range(3)]
    s.publish_cuts(1, rows, cuts)
    assert s.sample_ready(1) == (2, 2, 0b101, 0, 0, 2, 1)
    assert [s.output(slot) for slot in range(3)] == [[20], [], [40]]
    assert s.sampled.done(1, 0) == 0
    assert s.sample_ready(1, is_rest=True) == (0, 0, 0, 0, 0, 0, 1)
    s.complete(1, logits)
    assert s.sample_ready(1, is_rest=True) == (1, 1, 0b010, 0, 0, 0, 0)
    assert s.sampled.results(1, 3) == [(20, 0), (30, 0), (40, 0)]
    assert s.sampled.done(1, 0) == 1


def test_urgent_rows_do_not_wait_for_the_others() -> None:
    s = Segments(cut_capacity=CAPACITY)
    for slot in range(3):
        s.open_slot(slot, [5], GREEDY)
    logits = peaked(20, 30, 40)
    s.publish_cuts(1, [s.row(slot) for slot in range(3)], [])
    assert s.sample_ready(1) == (0, 0, 0, 0, 0, 0, 3)
    s.send_urgent(1, {0: logits[0], 2: logits[2]})
    assert s.sample_ready(1, is_rest=True) == (2, 2, 0b101, 0, 0, 0, 1)
    assert [s.output(slot) for slot in range(3)] == [[20], [], [40]]
    assert s.sampled.done(1, 0) == 0
    s.complete(1, logits)
    assert s.sample_ready(1, is_rest=True) == (1, 1, 0b010, 0, 0, 0, 0)
    assert s.sampled.done(1, 0) == 1


def test_an_old_word_for_an_urgent_row_is_not_taken_for_this_step() -> None:
    s, row = opened(flags=0)
    s.publish_cuts(1, [row], [])
    s.send_urgent(1, {0: LOGITS})
    word = s.logits.urgent_offset(1, 0)
    for step in (0, 4):  # in the same place
        _native_ipc.store(s.logits.buf, word, step)
        assert s.sample_ready(1, is_rest=step > 0)[6] == 1
    _native_ipc.store(s.logits.buf, word, 1)
    assert s.sample_ready(1, is_rest=True)[6] == 0


def test_a_replacement_repeats_what_its_predecessor_did_and_left() -> None:
    s = Segments(cut_capacity=CAPACITY)
    for slot in range(2):
        s.open_slot(slot, [5], GREEDY)
    logits = peaked(20, 30)
    rows = [s.row(0)._replace(flags=RowHas.CUT), s.row(1)]
    s.publish_cuts(1, rows, [make_cut(row, 0.0, 3, CAPACITY) for row in logits])
    s.sample_ready(1)
    s.complete(1, peaked(21, 30))  # what was published counts
    assert s.sample_ready(1) == (2, 1, 0b11, 0, 0, 0, 0)
    assert s.sampled.results(1, 2) == [(20, 0), (30, 0)]


def test_a_row_that_ends_while_it_waits_is_not_waited_for() -> None:
    s, row = opened(flags=0)
    s.publish_cuts(1, [row], [])
    assert s.sample_ready(1)[6] == 1
    s.slots.store(0, SlotWord.END_REASON, FinishReason.CANCELLED)
    assert s.sample_ready(1, is_rest=True) == (1, 0, 1, 0, 0, 0, 0)
    assert s.sampled.results(1, 1) == [(-1, NO_TOKEN)]
    assert s.sampled.done(1, 0) == 1


def test_an_old_word_for_complete_rows_is_not_taken_for_this_step() -> None:
    s, row = opened(flags=0)
    s.publish_cuts(4, [row], [])
    s.complete(1, LOGITS[None])  # step 1 stood at the same place
    assert s.sample_ready(4)[6] == 1


def test_in_a_ring_without_cuts_a_step_that_is_ready_has_its_rows() -> None:
    s = Segments()
    s.open_slot(0, [5], GREEDY)
    s.publish_cuts(1, [s.row(0)._replace(flags=RowHas.CUT | RowHas.TOKEN)], [])
    s.fill(1, peaked(20))
    assert s.sample(1)[:2] == (1, 1)
    assert s.output(0) == [20]


def test_a_row_waits_for_the_lane_that_had_its_last_token() -> None:
    """A device that chose the step before itself has not waited for anybody."""
    s = Segments(cut_capacity=CAPACITY, num_lanes=2)
    s.open_slot(0, [0], SamplingParams(temperature=0.0, ignore_eos=True))
    flags = RowHas.CUT | RowHas.TOKEN
    for step, lane in ((1, 0), (2, 1)):
        row = s.row(0)._replace(flags=flags, lane=lane, position=step)
        cut = Cut(CutState.TOKEN, 4 + step, 1.0, 1.0, 0.0, 0.0, step)
        s.publish_cuts(step, [row], [cut])
    assert s.sample_ready(2, lane=1)[5:] == (0, 1)
    assert s.num_early == 1
    assert s.sampled.done(2, 1) == 0
    assert s.sample_ready(2, lane=1, is_rest=True)[5:] == (0, 1)
    assert s.sample_ready(1, lane=0) == (1, 1, 1, 0, 0, 1, 0)
    assert s.sample_ready(2, lane=1, is_rest=True) == (1, 1, 1, 0, 0, 1, 0)
    assert s.output(0) == [5, 6]
    assert s.sampled.done(2, 1) == 2


def test_a_row_that_ended_in_another_lane_meanwhile_ends_here() -> None:
    s = Segments(cut_capacity=CAPACITY, num_lanes=2)
    s.open_slot(0, [0], SamplingParams(temperature=0.0, stop_token_ids=(5,)))
    flags = RowHas.CUT | RowHas.TOKEN
    for step, lane in ((1, 0), (2, 1)):
        row = s.row(0)._replace(flags=flags, lane=lane, position=step)
        s.publish_cuts(step, [row], [Cut(CutState.TOKEN, 4 + step, 1.0, 1.0, 0.0, 0.0, step)])
    s.sample_ready(2, lane=1)
    s.sample_ready(1, lane=0)
    s.sample_ready(2, lane=1, is_rest=True)
    assert s.output(0) == [5]
    assert s.sampled.results(2, 1)[0][1] == RowFlag.FINISHED | RowFlag.NO_TOKEN
