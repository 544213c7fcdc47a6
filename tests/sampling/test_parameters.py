from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InternalError, InvalidRequest, UnsupportedModel
from hybridgen.ipc.slot_table import SlotTable
from hybridgen.request import MAX_GRAMMAR_BYTES, Grammar, SamplingParams
from hybridgen.sampling import parameters

float32 = st.floats(0.5, 2, width=32)
ids = st.integers(0, 2**31 - 1)


def record() -> memoryview:
    return memoryview(bytearray(parameters.SAMPLING_BYTES))


@st.composite
def sampling_params(draw):
    return SamplingParams(
        temperature=draw(float32),
        top_k=draw(st.integers(0, 2**31 - 1)),
        top_p=draw(st.floats(0.125, 1, width=32)),
        min_p=draw(st.floats(0, 1, width=32)),
        repetition_penalty=draw(float32),
        presence_penalty=draw(st.floats(-2, 2, width=32)),
        frequency_penalty=draw(st.floats(-2, 2, width=32)),
        logit_bias=draw(st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=20)),
        min_tokens=draw(st.integers(0, 2**31 - 1)),
        stop=tuple(draw(st.lists(st.text(min_size=1, max_size=60), max_size=4))),
        stop_regex=draw(st.none() | st.text(min_size=1, max_size=64)),
        stop_token_ids=tuple(draw(st.lists(ids, max_size=64))),
        ignore_eos=draw(st.booleans()),
        include_stop_str_in_output=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        keep_tool_marks=draw(st.booleans()),
        keep_reasoning_marks=draw(st.booleans()),
        logprobs=draw(st.none() | st.integers(0, 20)),
    )


@given(sampling_params(), st.lists(ids, max_size=16), st.integers(0, 2**64 - 1))
def test_unpack_returns_what_was_packed(params, eos_ids, seed):
    into = record()
    parameters.pack(params, eos_ids, seed, into)
    assert parameters.unpack(into) == (
        msgspec.structs.replace(params, seed=seed),
        tuple(eos_ids),
        seed,
    )


@pytest.mark.parametrize("kind", parameters.GRAMMAR_KINDS)
def test_a_grammar_comes_back_with_its_text_where_its_area_is_given(kind):
    table = SlotTable.in_memory(num_slots=3, max_model_len=8)
    into, area = table.parameters(2), table.grammar(2)
    grammar = Grammar(kind, "é" * (MAX_GRAMMAR_BYTES // 2))
    parameters.pack(SamplingParams(grammar=grammar), (2,), 5, into, area)
    assert parameters.unpack(into, area).params.grammar == grammar
    assert parameters.unpack(into).params.grammar == Grammar(kind)
    assert bytes(table.grammar(1)) == bytes(MAX_GRAMMAR_BYTES)
    parameters.pack(SamplingParams(), (2,), 5, into, area)
    assert parameters.unpack(into, area).params.grammar is None


def test_a_grammar_without_room_for_its_text_is_refused():
    grammar = Grammar("regex", "a")
    with pytest.raises(InvalidRequest, match="grammar"):
        parameters.pack(SamplingParams(grammar=grammar), (), 0, record())


def test_a_record_fits_the_parameters_of_a_slot():
    into = SlotTable.in_memory(num_slots=1, max_model_len=8).parameters(0)
    parameters.pack(SamplingParams(top_k=7), (2,), 5, into)
    assert parameters.unpack(into).params.top_k == 7


def test_top_k_of_minus_one_is_stored_as_no_limit():
    into = record()
    parameters.pack(SamplingParams(top_k=-1), (), 0, into)
    assert parameters.unpack(into).params.top_k == 0


def test_the_limits_of_the_record_can_be_used_to_the_full():
    params = SamplingParams(
        logit_bias=dict.fromkeys(range(512), 1.0),
        stop_token_ids=tuple(range(64)),
        stop=("x" * 256,) * 4,
        stop_regex="é" * 128,
        seed=3,
    )
    into = record()
    parameters.pack(params, range(16), 3, into)
    assert parameters.unpack(into).params == params


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(logit_bias=dict.fromkeys(range(513), 1.0)),
        SamplingParams(stop_token_ids=tuple(range(65))),
        SamplingParams(stop=("x",) * 5),
        SamplingParams(stop=("x" * 257,) * 4),
        SamplingParams(stop_regex="x" * 257),
    ],
)
def test_pack_refuses_what_the_record_cannot_hold(params):
    with pytest.raises(InvalidRequest, match="too many entries"):
        parameters.pack(params, (), 0, record())


def test_pack_refuses_a_model_with_too_many_end_of_text_ids():
    with pytest.raises(UnsupportedModel, match="limit 16"):
        parameters.pack(SamplingParams(), range(17), 0, record())


def test_a_buffer_of_another_size_is_refused():
    with pytest.raises(InternalError, match="not a sampling record"):
        parameters.pack(SamplingParams(), (), 0, memoryview(bytearray(100)))


def test_unpack_refuses_counts_out_of_bounds():
    for offset in (48, 52, 56, 60):
        into = record()
        into[offset : offset + 4] = (10_000).to_bytes(4, "little")
        with pytest.raises(InternalError, match="too many"):
            parameters.unpack(into)
