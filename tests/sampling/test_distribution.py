"""Drawn tokens have the probabilities they should have (chi-square, fixed seeds)."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from hybridgen.request import SamplingParams
from hybridgen.sampling import _native
from tests.sampling.rows import Row

NUM_DRAWS = 20_000
SEED_OFFSET = 32
SETTINGS = {
    "temperature": SamplingParams(temperature=0.7),
    "top_k": SamplingParams(temperature=1.0, top_k=12),
    "top_p": SamplingParams(temperature=1.3, top_p=0.8),
    "min_p": SamplingParams(temperature=1.0, min_p=0.1),
    "all": SamplingParams(
        temperature=0.9,
        top_k=20,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={3: 1.0, 250: 4.0},
    ),
}


def expected(row: Row) -> np.ndarray:
    return row.probabilities() * NUM_DRAWS


def chi_square(counts: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """The statistic, and its 99.99 % quantile (Wilson and Hilferty's approximation)."""
    rare = (wanted > 0) & (wanted < 5)
    counts = np.append(counts[wanted >= 5], counts[rare].sum())
    wanted = np.append(wanted[wanted >= 5], wanted[rare].sum())
    counts, wanted = counts[wanted >= 5], wanted[wanted >= 5]
    freedom = len(wanted) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3
    return float(((counts - wanted) ** 2 / wanted).sum()), float(limit)


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_over_many_seeds_follow_the_probabilities(name):
    rng = np.random.default_rng(5)
    row = Row(
        rng.normal(0, 1.5, 300).astype(np.float32),
        SETTINGS[name],
        history=rng.integers(0, 300, 40).tolist(),
        prompt_len=20,
    )
    record, history = row.packed(), np.asarray(row.history, np.int32)
    counts = np.zeros(300)
    for seed in range(NUM_DRAWS):
        struct.pack_into("=Q", record, SEED_OFFSET, seed)
        counts[_native.sample_row(row.logits, record, history, 20)[0]] += 1
    wanted = expected(row)
    assert not counts[wanted == 0].any()
    statistic, limit = chi_square(counts, wanted)
    assert statistic < limit


def test_draws_over_many_positions_of_one_seed_follow_the_probabilities():
    rng = np.random.default_rng(6)
    row = Row(rng.normal(0, 1, 200).astype(np.float32), SamplingParams(seed=77))
    history = np.zeros(NUM_DRAWS, np.int32)
    record = row.packed()
    counts = np.zeros(200)
    for position in range(NUM_DRAWS):
        counts[_native.sample_row(row.logits, record, history[:position], 0)[0]] += 1
    statistic, limit = chi_square(counts, expected(row))
    assert statistic < limit
