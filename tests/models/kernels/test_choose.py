"""Tokens chosen by the kernels: always the native sampler's, whichever way they are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridgen.errors import InternalError
from hybridgen.models.kernels.choose import choose_rows
from hybridgen.request import SamplingParams
from hybridgen.scheduler.row_parameters import RowWork
from tests.models.kernels.sampling_oracle import (
    Batch,
    Row,
    chosen,
    chosen_by_sampler,
    random_row,
)

NONE, TOKEN = 0, 2
VOCAB = 2500
#: Ways to choose that the 64 candidates of a smooth row decide, and ways that they do not.
SURE = [
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 12},
    {"top_k": 12, "top_p": 0.7},
    {"top_k": 12, "top_p": 0.7, "min_p": 0.1},
    {"temperature": 0.3, "top_p": 0.5},
    {"min_p": 0.5},
    {"min_p": 0.5, "top_p": 0.99},
    {"min_p": 0.5, "top_k": 2000},
    {"top_p": 1e-6},
]
UNSURE = [
    {},
    {"temperature": 2.0},
    {"temperature": 100.0, "top_p": 0.9},
    {"top_p": 0.99},
    {"top_p": 0.999999, "min_p": 1e-9},
    {"top_k": 300},
    {"top_k": 2499},
    {"top_k": 300, "top_p": 0.9},
    {"top_k": 300, "top_p": 0.97, "min_p": 0.01},
    {"min_p": 0.01},
]


def smooth(seed: int = 0, spread: float = 1.5) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, VOCAB).astype(np.float32)


def rows_of(logits: np.ndarray, params: dict[str, float], num_rows: int = 3) -> list[Row]:
    return [
        Row(logits, SamplingParams(seed=seed, **params), position=5 * seed)
        for seed in range(num_rows)
    ]


def check(rows: list[Row], capacity: int = 64) -> None:
    batch = Batch(rows, capacity)
    expected = [chosen_by_sampler(row) for row in rows]
    assert expected == [chosen(row) for row in rows]
    assert batch.choose() == [token or 0 for token in expected]
    for index, token in enumerate(expected):
        record = batch.record(index)
        assert record.state == (NONE if token is None else TOKEN)
        assert record.token_id == (token or 0)
        assert record.step == batch.step


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32), vocab=st.sampled_from([1, 2, 63, 65, 300, 2049, 3000]))
def test_any_row_gives_the_samplers_token(seed: int, vocab: int) -> None:
    check([random_row(np.random.default_rng(seed), vocab)])


@pytest.mark.parametrize("params", SURE)
def test_candidates_decide_without_a_look_at_the_row(params: dict[str, float]) -> None:
    rows = rows_of(smooth(), params)
    batch = Batch(rows)
    batch.cut(is_choosing=True)
    if rows[0].params.temperature:  # the first of the top needs one block of the row
        batch.logits.fill_(torch.nan)
    choose_rows(
        batch.logits, batch.params, batch.step, batch.records.data_ptr(), batch.results,
        batch.workspace,
    )  # fmt: skip
    assert batch.results[:, 0].tolist() == [chosen_by_sampler(row) for row in rows]


@pytest.mark.parametrize("params", UNSURE)
def test_where_candidates_do_not_decide_the_row_does(params: dict[str, float]) -> None:
    check(rows_of(smooth(1), params))


@pytest.mark.parametrize("params", [*SURE, *UNSURE])
@pytest.mark.parametrize("steps", [1, 3])
def test_equal_logits_are_told_apart_by_id(params: dict[str, float], steps: int) -> None:
    check(rows_of(np.round(smooth(2) * steps), params, 1))


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_k": 90}, {"top_p": 0.9}])
def test_a_row_of_equal_logits_is_told_apart_by_id(params: dict[str, float]) -> None:
    check(rows_of(np.full(VOCAB, -2.5, np.float32), params, 1))


@pytest.mark.parametrize("params", [{"top_k": 700}, {"top_p": 0.9}, {"min_p": 1e-5}])
def test_logits_of_all_magnitudes_are_searched(params: dict[str, float]) -> None:
    logits = smooth(3) * np.float32(10) ** np.random.default_rng(3).integers(-40, 3, VOCAB)
    check(rows_of(logits.astype(np.float32), {"temperature": 50.0, **params}, 1))


def test_top_k_beyond_what_is_finite_keeps_all_of_it() -> None:
    logits = smooth(4)
    logits[np.random.default_rng(4).random(VOCAB) < 0.9] = -np.inf
    check(rows_of(logits, {"top_k": 1000}))


def test_rows_that_are_not_valid_get_the_token_0_and_no_state() -> None:
    logits = [smooth() for _ in range(3)]
    logits[0][17] = np.nan
    logits[1][2400] = np.inf
    logits[2][:] = -np.inf
    check([Row(each, SamplingParams(seed=1)) for each in logits])


def test_rows_of_any_capacity_agree() -> None:
    for capacity in (8, 120, 1024):
        check(rows_of(smooth(5), {"top_p": 0.8}, 1), capacity)


def test_rows_without_both_flags_are_left_alone() -> None:
    batch = Batch(rows_of(smooth(), {}))
    batch.params[0, 7] = int(RowWork.CUT)
    batch.params[1, 7] = int(RowWork.CHOOSE)
    tokens = batch.choose()
    assert tokens[:2] == [-5, -5]
    assert tokens[2] == chosen_by_sampler(rows_of(smooth(), {})[2])
    assert batch.record(0).state == 1
    assert (batch.records[1] == 0x5A).all()


def test_a_choice_overrides_a_record_with_candidates() -> None:
    rows = rows_of(smooth(), {"top_k": 5})
    batch = Batch(rows)
    batch.cut()
    assert batch.record(0).state == 1
    batch.choose()
    assert batch.record(0).state == TOKEN
    assert batch.record(0).token_id == chosen_by_sampler(rows[0])


def test_only_the_first_word_of_a_result_is_written() -> None:
    batch = Batch(rows_of(smooth(), {}))
    batch.choose()
    assert (batch.results[:, 1:] == -5).all()


def test_results_that_do_not_fit_are_refused() -> None:
    batch = Batch(rows_of(smooth(), {}))
    for results in (batch.results[:2], batch.results.float(), batch.results[:, 0]):
        with pytest.raises(InternalError, match="results"):
            choose_rows(batch.logits, batch.params, 7, 64, results, batch.workspace)
