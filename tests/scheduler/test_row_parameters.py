"""What a device is told of a row is what the samplers compute with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.ipc import _native
from hybridgen.ipc.logit_ring import Cut, CutState, RowHas
from hybridgen.request import Grammar, SamplingParams
from hybridgen.sampling import parameters
from hybridgen.scheduler.row_parameters import (
    BASE_WORD,
    HAS_CUT,
    HAS_TOKEN,
    NEVER,
    NO_PARAMETERS,
    PARAMETER_WORDS,
    RowParameters,
    RowWork,
    read_parameters,
)
from tests.sampling.step_fixture import Segments


def read(params: SamplingParams, seed: int = 0) -> RowParameters:
    record = memoryview(bytearray(parameters.SAMPLING_BYTES))
    parameters.pack(params, (2,), seed, record)
    return read_parameters(record, prompt_len=10)


@given(
    top_k=st.integers(-1, 10**6),
    top_p=st.floats(1e-6, 1.0),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_words_hold_the_numbers_of_the_slot(
    top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    words, plain_from = read(SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p), seed)
    assert words.shape == (PARAMETER_WORDS,)
    assert words.dtype == np.int32
    assert words[1] == max(top_k, 0)
    assert words[2:4].view(np.float32).tolist() == [np.float32(top_p), np.float32(min_p)]
    assert int(words[4:6].view(np.uint64)[0]) == seed
    assert (words[BASE_WORD], words[7]) == (0, RowWork.CUT | RowWork.CHOOSE)
    assert plain_from == 10


@given(st.floats(2e-5, 1000.0))
def test_the_scale_is_the_samplers_own_to_the_last_bit(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=1, seed=0)
    scale = float(read(params).words[:1].view(np.float32)[0])
    s = Segments(cut_capacity=8)
    s.open_slot(0, [5], params)
    row = s.row(0)._replace(flags=RowHas.CUT)
    for step, bits in ((1, scale), (2, float(np.nextafter(np.float32(scale), np.float32(0))))):
        cut = Cut(CutState.CANDIDATES, -1, 3.0, 3.0, bits, 1.0, step, (3.0,), (7,))
        s.publish_cuts(step, [row], [cut])
        s.slots.store(0, 128, 0)  # nothing was generated
        assert s.sample_ready(step)[5] == int(bits == scale)


@pytest.mark.parametrize(("temperature", "is_greedy"), [(0.0, True), (9e-6, True), (1e-5, False)])
def test_a_temperature_as_good_as_zero_is_greedy(temperature: float, is_greedy: bool) -> None:
    assert (read(SamplingParams(temperature=temperature)).words[0] == 0) == is_greedy


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": 0},
        {"logit_bias": {3: 1.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"grammar": Grammar("json_object")},
    ],
)
def test_a_row_whose_logits_change_or_are_asked_for_is_left_to_the_samplers(
    changes: dict[str, object],
) -> None:
    words, plain_from = read(SamplingParams(**changes))  # type: ignore[arg-type]
    assert (plain_from, words[7]) == (NEVER, 0)


def test_a_row_is_a_devices_once_no_id_is_banned_any_more() -> None:
    words, plain_from = read(SamplingParams(min_tokens=7))
    assert (plain_from, words[7]) == (17, RowWork.CUT | RowWork.CHOOSE)


def test_stop_conditions_do_not_matter_to_a_device() -> None:
    params = SamplingParams(stop=("x",), stop_token_ids=(4,), ignore_eos=True, temperature=0.0)
    assert read(params).plain_from == 10


def test_flags_of_a_row_are_those_of_the_layout_and_no_parameters_are_nobodys() -> None:
    layout = _native.layout()
    assert (layout["HG_ROW_HAS_CUT"], layout["HG_ROW_HAS_TOKEN"]) == (HAS_CUT, HAS_TOKEN)
    assert not NO_PARAMETERS.words.any()
    with pytest.raises(ValueError, match="read-only"):
        NO_PARAMETERS.words[0] = 1
