"""Which rows are sent at once: those that a request or their cut leaves to the whole row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridgen.errors import InternalError
from hybridgen.ipc.logit_ring import Cut, CutState
from hybridgen.models.kernels.urgent_rows import send_kernel, send_urgent_rows
from hybridgen.request import SamplingParams
from tests.models.kernels.sampling_oracle import HEAD, Batch, Row, random_row
from tests.sampling.cut_oracle import proves

VOCAB = 1500
UNSENT = -7.0


@np.errstate(all="ignore")
def send(batch: Batch, *, is_sending: bool = True) -> tuple[torch.Tensor, list[bool]]:
    """Cut the rows and send the urgent ones: their places, and which say that they are urgent."""
    batch.cut()
    places = torch.full((len(batch.params), batch.vocab + 4), UNSENT)
    send_urgent_rows(
        batch.logits, batch.params, batch.step, batch.records.data_ptr(), places.data_ptr(),
        places.shape[1], batch.workspace, is_sending=is_sending,
    )  # fmt: skip
    assert not batch.workspace.counters.any()
    assert not batch.workspace.urgent[:2].any()
    return places, urgent_of(batch)


def urgent_of(batch: Batch) -> list[bool]:
    """Which rows say that they are there."""
    heads = [record[:64].numpy().view(HEAD)[0] for record in batch.records]
    return [int(head["urgent"]) == batch.step for head in heads]


def is_proven(batch: Batch, index: int, params: SamplingParams) -> bool:
    record = batch.record(index)
    cut = Cut(
        CutState(record.state), -1, float(record.top), float(record.threshold),
        float(record.scale), record.total, record.step, record.values.tolist(), record.ids.tolist(),
    )  # fmt: skip
    return proves(cut, params, batch.vocab)


@pytest.mark.parametrize("seed", range(12))
def test_rows_that_their_cut_does_not_decide_are_sent_and_no_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [random_row(rng, VOCAB) for _ in range(4)]
    batch = Batch(rows)
    places, is_urgent = send(batch)
    for index, row in enumerate(rows):
        assert is_urgent[index] == (not is_proven(batch, index, row.params)), row.params
        sent = places[index].numpy()
        wanted = row.logits if is_urgent[index] else np.full(VOCAB, UNSENT, np.float32)
        assert np.array_equal(sent[:VOCAB], wanted, equal_nan=True)
        assert (sent[VOCAB:] == UNSENT).all()  # what lies behind a row is another's


def test_rows_that_the_device_does_not_cut_are_sent() -> None:
    logits = np.linspace(-1, 1, VOCAB, dtype=np.float32)
    greedy = SamplingParams(temperature=0.0)
    wanting_more = SamplingParams(temperature=0.0, logprobs=2)
    places, is_urgent = send(Batch([Row(logits, greedy), Row(logits, wanting_more)]))
    assert is_urgent == [False, True]
    assert (places[0] == UNSENT).all()
    assert np.array_equal(places[1, :VOCAB], logits)


def test_more_rows_than_are_under_way_at_once_are_sent() -> None:
    logits = np.random.default_rng(1).normal(0, 1, (6, 5)).astype(np.float32)
    batch = Batch([Row(row, SamplingParams(logprobs=0)) for row in logits])
    for step in (7, 2**40):
        batch.step = step
        places, is_urgent = send(batch)
        assert all(is_urgent)
        assert np.array_equal(places[:, :5], logits)


@pytest.mark.parametrize(("num_there", "has_sent"), [(3, True), (2, False)])
def test_a_row_is_there_once_all_its_parts_are(num_there: int, has_sent: bool) -> None:
    """Two rows at once, in parts of several blocks each; or a part has yet to come."""
    vocab = 500
    logits = np.random.default_rng(2).normal(0, 1, (5, vocab)).astype(np.float32)
    batch = Batch([Row(row, SamplingParams(logprobs=0)) for row in logits])
    batch.workspace.urgent[:] = torch.tensor([5, 0, 4, 0, 3, 1, 2, 0])
    places = torch.full(logits.shape, UNSENT)
    send_kernel[(num_there, 2)](
        batch.logits, batch.workspace.counters, batch.workspace.urgent, batch.records.data_ptr(),
        places.data_ptr(), batch.step, 1, batch.logits.stride(0), vocab, vocab, batch.capacity,
        PARTS=3, GROUPS=2, BLOCK=64, IS_COMPILED=False,
    )  # fmt: skip
    assert urgent_of(batch) == [has_sent] * 5
    assert np.array_equal(places, logits) == has_sent


def test_an_unlimited_choice_is_left_to_the_whole_row() -> None:
    flat = np.zeros(VOCAB, np.float32)
    peaked = np.full(VOCAB, -100, np.float32)
    peaked[3] = 0
    plain = SamplingParams(temperature=1.0)
    _, is_urgent = send(Batch([Row(flat, plain), Row(peaked, plain)]))
    assert is_urgent == [True, False]


def test_a_dry_run_sends_nothing() -> None:
    places, is_urgent = send(
        Batch([Row(np.zeros(VOCAB, np.float32), SamplingParams())]), is_sending=False
    )
    assert (places == UNSENT).all()
    assert is_urgent == [False]


def test_operands_that_do_not_fit_are_refused() -> None:
    batch = Batch([Row(np.zeros(VOCAB, np.float32), SamplingParams())])
    with pytest.raises(InternalError, match="logits"):
        send_urgent_rows(
            batch.logits[:, :-1], batch.params, 1, batch.records.data_ptr(), 16, 16, batch.workspace
        )
