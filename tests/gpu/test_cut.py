"""Cuts and choices on a device: bit for bit what the native sampler makes of the same logits."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from hybridgen.request import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
if torch.cuda.is_available():
    from hybridgen.models.kernels.urgent_rows import send_urgent_rows
    from tests.models.kernels.sampling_oracle import (
        HEAD,
        Batch,
        Row,
        chosen_by_sampler,
        random_row,
        scale_of,
        weights_of,
    )

VOCABS = [1000, 32_000, 50_257, 128_256, 262_208]
#: Decided by candidates, by sums, and by a search of the row.
MANNERS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"top_k": 40},
    {"top_p": 0.9, "temperature": 0.6},
    {"top_p": 0.98},
    {"top_k": 3000, "top_p": 0.95},
    {"min_p": 0.1},
    {"min_p": 1e-4, "top_p": 0.999},
]


def smooth(vocab: int, seed: int, spread: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, vocab).astype(np.float32)


def check_tokens(rows: list[Row]) -> None:
    batch = Batch(rows, capacity=512, device="cuda")
    for _ in range(2):  # the second finds the workspace as the first left it
        tokens = batch.choose()
        expected = [chosen_by_sampler(row) for row in rows]
        assert tokens == [token or 0 for token in expected]
        for index, token in enumerate(expected):
            record = batch.record(index)
            assert (record.state, record.token_id) == (0 if token is None else 2, token or 0)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("num_rows", [1, 9, 64])
def test_random_rows_give_the_samplers_tokens(vocab, num_rows):
    rng = np.random.default_rng(vocab + num_rows)
    check_tokens([random_row(rng, vocab) for _ in range(num_rows)])


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("spread", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("manner", MANNERS)
def test_every_manner_gives_the_samplers_tokens(vocab, spread, manner):
    check_tokens(
        [
            Row(smooth(vocab, seed, spread), SamplingParams(seed=seed, **manner), 11 * seed)
            for seed in range(16)
        ]
    )


@pytest.mark.parametrize("vocab", VOCABS)
def test_logits_of_half_precision_are_told_apart_by_id(vocab):
    rows = []
    for seed in range(24):
        logits = torch.from_numpy(smooth(vocab, seed, 3.0)).bfloat16().float().numpy()
        manner = MANNERS[seed % len(MANNERS)]
        rows.append(Row(logits, SamplingParams(seed=seed, **manner), seed))
    check_tokens(rows)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("num_rows", [1, 40])
def test_records_hold_all_that_reach_their_threshold_and_the_exact_total(vocab, num_rows):
    params = SamplingParams(temperature=0.8)
    rows = [Row(smooth(vocab, seed, 3.0), params) for seed in range(num_rows)]
    batch = Batch(rows, capacity=512, device="cuda")
    for _ in range(2):
        batch.records.fill_(0x5A)
        batch.cut()
        torch.cuda.synchronize()
        for index, row in enumerate(rows):
            record = batch.record(index)
            assert record.state == 1
            assert record.ids.tolist() == np.flatnonzero(row.logits >= record.threshold).tolist()
            assert np.array_equal(record.values, row.logits[record.ids])
            with np.errstate(all="ignore"):
                weights = weights_of(row.logits, row.logits.max(), scale_of(params))
            assert record.total == weights.astype(np.float64).sum()
            assert vocab <= 1000 or 128 <= len(record.ids) <= 512


@pytest.mark.parametrize("vocab", [50_257, 128_256])
def test_urgent_rows_are_in_host_memory_when_their_word_says_so(vocab):
    rows = [Row(smooth(vocab, seed, 2.0), SamplingParams(temperature=1.0)) for seed in range(16)]
    batch = Batch(rows, capacity=512, device="cuda")
    batch.records = torch.zeros_like(batch.records, device="cpu").pin_memory()
    places = torch.empty(len(rows), vocab).pin_memory()
    words = [record[:64].numpy().view(HEAD)["urgent"] for record in batch.records]
    for step in range(1, 40):
        places.fill_(torch.nan)
        batch.step = step
        batch.cut()
        send_urgent_rows(
            batch.logits, batch.params, step, batch.records.data_ptr(), places.data_ptr(), vocab,
            batch.workspace,
        )  # fmt: skip
        until_s = time.monotonic() + 5.0
        for index in reversed(range(len(rows))):
            while words[index][0] != step:  # at once: nothing else tells that a row is there
                assert time.monotonic() < until_s
            assert np.array_equal(places[index].numpy(), rows[index].logits)
    assert not batch.workspace.counters.any()
