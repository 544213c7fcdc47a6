from __future__ import annotations

import math

import pytest

from hybridgen.config import SchedulerSection
from hybridgen.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from hybridgen.messages import SubmitRequest
from hybridgen.request import IdsPrompt, Prompt, SamplingParams, TextPrompt
from hybridgen.scheduler.admission import Admission
from hybridgen.scheduler.finish_rate import FinishRate
from hybridgen.scheduler.tree_shape import TreeShape
from tests.support.fake_clock import FakeClock

SHAPE = TreeShape(num_tokenizers=1, num_detokenizers=1, vocab_size=100, max_model_len=64)


def make(backlog_limit: int = 2, clock: FakeClock | None = None) -> Admission:
    limits = SchedulerSection(max_num_seqs=2, backlog_limit=backlog_limit)
    return Admission(SHAPE, limits, clock or FakeClock())


def order(prompt: Prompt, **params: object) -> SubmitRequest:
    return SubmitRequest(
        request_id=bytes(16),
        prompt=prompt,
        params=SamplingParams(**params),  # type: ignore[arg-type]
    )


def test_ids_up_to_the_context_minus_one_are_admitted() -> None:
    make().check(order(IdsPrompt([1] * 63)), num_live=0)


@pytest.mark.parametrize(
    ("num_ids", "max_tokens"), [(64, None), (65, 1), (60, 5), (1, 64), (10_000, None)]
)
def test_too_long_is_refused_with_lengths(num_ids: int, max_tokens: int | None) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        make().check(order(IdsPrompt([1] * num_ids), max_tokens=max_tokens), num_live=0)
    assert caught.value.fields["limit"] == 64
    assert caught.value.fields["num_prompt_tokens"] == num_ids


def test_max_tokens_beyond_the_context_is_refused_before_encoding() -> None:
    with pytest.raises(ContextLengthExceeded):
        make().check(order(TextPrompt("hello"), max_tokens=64), num_live=0)


@pytest.mark.parametrize("ids", [[], [-1], [1, 100], [2**40]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make().check(order(IdsPrompt(ids)), num_live=0)
    assert {"param", "value", "limit", "remedy"} <= set(caught.value.fields)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_a_timeout_out_of_range_is_refused(timeout_s: float) -> None:
    wanted = SubmitRequest(
        request_id=bytes(16),
        prompt=IdsPrompt([1]),
        params=SamplingParams(),
        timeout_s=timeout_s,
    )
    with pytest.raises(InvalidRequest, match="timeout_s"):
        make().check(wanted, num_live=0)


def test_logit_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        make().check(order(IdsPrompt([1]), logit_bias={100: 1.0}), num_live=0)


def test_backlog_counts_beyond_what_can_run() -> None:
    admission = make(backlog_limit=2)
    admission.check_backlog(num_live=3)
    with pytest.raises(QueueFull) as caught:
        admission.check_backlog(num_live=4)
    assert caught.value.fields["value"] == 2
    assert caught.value.fields["retry_after_s"] >= 1.0


def test_retry_after_follows_the_measured_rate() -> None:
    clock = FakeClock()
    rate = FinishRate(clock)
    assert rate.retry_after_s(10) == 1.0
    for _ in range(200):
        clock.advance(0.5)
        rate.count()
    assert rate.per_s() == pytest.approx(2.0, rel=0.05)
    assert rate.retry_after_s(20) == pytest.approx(10.0, rel=0.05)
    assert rate.retry_after_s(10**6) == 120.0


@pytest.mark.parametrize(("max_kv", "want"), [(-1, 64), (20, 21), (63, 64), (1000, 64)])
def test_kv_memory_caps_the_length(max_kv: int, want: int) -> None:
    assert make().max_len(5, None, max_kv) == want


def test_a_prompt_larger_than_kv_memory_is_refused() -> None:
    with pytest.raises(ContextLengthExceeded, match="KV memory"):
        make().max_len(21, None, 20)
