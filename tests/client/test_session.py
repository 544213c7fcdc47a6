from __future__ import annotations

import msgspec
import pytest

from hybridgen.client.limits import ClientLimits
from hybridgen.client.peer import ADMIN, COSCHEDULER, text_peer
from hybridgen.errors import (
    Cancelled,
    ChannelTimeout,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    PeerGone,
    QueueFull,
)
from hybridgen.messages import (
    AckFinished,
    CancelRequest,
    ErrorInfo,
    HealthReport,
    ListProcesses,
    PromptTokenized,
    QueryHealth,
    RequestAccepted,
    RequestFinished,
    StopAccepted,
    StopTree,
    SubmitRequest,
    SubscribeText,
    TextUnknown,
    TokenizePrompt,
)
from hybridgen.request import SamplingParams, TextPrompt
from tests.support.scripted_server import GoldenText, SessionDriver, connected_driver

TEXT0, TEXT1 = text_peer(0), text_peer(1)
GOLDEN = GoldenText(["Al", "pen", "", "glü", "hen", "!"])
LIMITS = ClientLimits()


def finished(
    request_id: bytes, golden: GoldenText = GOLDEN, reason: str = "stop"
) -> RequestFinished:
    return RequestFinished(
        request_id=request_id,
        finish_reason=reason,
        num_prompt_tokens=3,
        num_tokens=len(golden.ids),
        num_chars=len(golden.text),
    )


def failed(request_id: bytes, error: Exception, **counts: int) -> RequestFinished:
    return RequestFinished(
        request_id=request_id,
        finish_reason="error",
        error=ErrorInfo.of(error),  # type: ignore[arg-type]
        **counts,
    )


def streaming_driver(num_tokens: int = 2) -> tuple[SessionDriver, bytes]:
    """A request that has shown ``num_tokens`` tokens from detokenizer 0."""
    driver = connected_driver()
    request_id = driver.submit()
    driver.connect(TEXT0)
    driver.receive(COSCHEDULER, RequestAccepted(request_id, 0, 7))
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 0, num_tokens))
    driver.take_sent()
    return driver, request_id


def test_an_order_waits_for_the_connection_and_leaves_with_it() -> None:
    driver = SessionDriver()
    request_id = driver.submit(timeout_s=5.0, priority=2)
    assert driver.take_sent() == []
    driver.connect(COSCHEDULER)
    order = SubmitRequest(
        request_id=request_id,
        prompt=TextPrompt("hello"),
        params=SamplingParams(seed=7),
        timeout_s=5.0,
        priority=2,
    )
    assert driver.take_sent(COSCHEDULER) == [order]


def test_acceptance_opens_the_detokenizer_and_subscribes_once_it_is_connected() -> None:
    driver = connected_driver()
    request_id = driver.submit()
    driver.receive(COSCHEDULER, RequestAccepted(request_id, 1, 7))
    assert driver.opened == [COSCHEDULER, TEXT1]
    assert driver.subscriptions(TEXT1) == []
    driver.connect(TEXT1)
    assert driver.subscriptions(TEXT1) == [(0, 0)]


def test_a_second_request_on_a_connected_detokenizer_subscribes_at_once() -> None:
    driver, _ = streaming_driver()
    second = driver.submit()
    driver.take_sent()
    driver.receive(COSCHEDULER, RequestAccepted(second, 0, 7))
    assert driver.take_sent(TEXT0) == [SubscribeText(second, 0, 0)]


def test_chunks_then_one_end_with_usage_and_acknowledgement() -> None:
    driver, request_id = streaming_driver(0)
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 0, 1, 4, 6))
    driver.receive(COSCHEDULER, finished(request_id))
    assert driver.text(request_id) == GOLDEN.text
    assert driver.ids(request_id) == GOLDEN.ids
    [end] = driver.ends[request_id]
    assert (end.finish_reason, end.error) == ("stop", None)
    assert (end.num_prompt_tokens, end.num_tokens, end.seed) == (3, 6, 7)
    assert driver.take_sent(COSCHEDULER) == [AckFinished(request_id)]
    assert driver.session.num_open == 0


def test_the_end_waits_for_text_that_the_final_message_promises() -> None:
    driver, request_id = streaming_driver(2)
    driver.receive(COSCHEDULER, finished(request_id))
    assert request_id not in driver.ends
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 2, 6))
    assert len(driver.ends[request_id]) == 1
    assert driver.text(request_id) == GOLDEN.text


def test_text_missing_after_the_final_message_is_asked_for_from_its_offsets() -> None:
    driver, request_id = streaming_driver(2)
    driver.receive(COSCHEDULER, finished(request_id))
    driver.advance(LIMITS.max_text_retry_s)
    assert driver.subscriptions(TEXT0) == [(2, 5)]


def test_text_that_never_comes_ends_in_a_typed_error_naming_both_counts() -> None:
    driver, request_id = streaming_driver(2)
    driver.receive(COSCHEDULER, finished(request_id))
    driver.advance(LIMITS.answer_timeout_s + 1)
    [end] = driver.ends[request_id]
    assert isinstance(end.error, ChannelTimeout)
    assert end.error.fields["num_tokens"] == 6
    assert "2 tokens" in str(end.error)


def test_repeats_are_cut_and_gaps_are_fetched_but_never_shown() -> None:
    driver, request_id = streaming_driver(2)
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 0, 3))  # two repeated tokens, one new
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 4, 5, 6))  # token 3 is missing
    assert driver.ids(request_id) == GOLDEN.ids[:3]
    assert driver.subscriptions(TEXT0) == [(3, 5)]  # asked once, not once per early delta
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 3, 6))
    assert driver.text(request_id) == GOLDEN.text


def test_a_new_coscheduler_gets_every_open_order_with_the_seed_it_was_begun_with() -> None:
    driver = connected_driver()
    request_id = driver.submit(params=SamplingParams())
    driver.receive(COSCHEDULER, RequestAccepted(request_id, 0, 4711))
    driver.take_sent()
    driver.connect(COSCHEDULER)
    [order] = driver.take_sent(COSCHEDULER)
    assert (order.request_id, order.params.seed) == (request_id, 4711)


def test_a_server_that_began_anew_with_another_seed_is_not_spliced() -> None:
    driver, request_id = streaming_driver()
    driver.receive(COSCHEDULER, RequestAccepted(request_id, 0, 8))
    [end] = driver.ends[request_id]
    assert isinstance(end.error, InternalError)


def test_a_new_detokenizer_is_subscribed_from_the_offsets_shown() -> None:
    driver, request_id = streaming_driver(2)
    driver.connect(TEXT0)
    assert driver.subscriptions(TEXT0) == [(2, 5)]
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 2, 6))
    assert driver.text(request_id) == GOLDEN.text


def test_a_repeated_acceptance_with_another_index_moves_the_subscription() -> None:
    driver, request_id = streaming_driver(4)
    driver.connect(TEXT1)
    driver.receive(COSCHEDULER, RequestAccepted(request_id, 1, 7))
    assert driver.subscriptions(TEXT1) == [(4, 8)]
    driver.receive(COSCHEDULER, RequestAccepted(request_id, 1, 7))
    assert driver.subscriptions(TEXT1) == []


def test_unknown_text_is_asked_for_again_with_growing_pauses() -> None:
    driver, request_id = streaming_driver(0)
    pauses = []
    for _ in range(8):
        driver.receive(TEXT0, TextUnknown(request_id))
        asked_s = driver.clock.now_s
        while not driver.subscriptions(TEXT0):
            driver.advance(driver.session.next_tick_s - driver.clock.now_s)
        pauses.append(round(driver.clock.now_s - asked_s, 4))
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25]


def test_a_silent_stream_is_subscribed_again() -> None:
    driver, _ = streaming_driver(2)
    driver.advance(LIMITS.silence_s + 1)
    assert driver.subscriptions(TEXT0) == [(2, 5)]


def test_a_rejection_ends_the_request_with_its_typed_error() -> None:
    driver = connected_driver()
    request_id = driver.submit()
    error = QueueFull("the backlog is full", value=100, limit=100, retry_after_s=0.5)
    driver.receive(COSCHEDULER, failed(request_id, error))
    [end] = driver.ends[request_id]
    assert isinstance(end.error, QueueFull)
    assert end.error.fields["retry_after_s"] == 0.5


def test_an_error_in_mid_stream_comes_after_the_text_before_it() -> None:
    driver, request_id = streaming_driver(2)
    error = DeadlineExceeded("too late")
    driver.receive(COSCHEDULER, failed(request_id, error, num_tokens=4, num_chars=8))
    assert request_id not in driver.ends
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 2, 4))
    [end] = driver.ends[request_id]
    assert isinstance(end.error, DeadlineExceeded)
    assert driver.ids(request_id) == GOLDEN.ids[:4]


def test_an_error_whose_text_is_gone_is_raised_after_a_short_wait() -> None:
    driver, request_id = streaming_driver(2)
    driver.receive(COSCHEDULER, failed(request_id, DeadlineExceeded("x"), num_tokens=4))
    driver.advance(LIMITS.failed_text_wait_s)
    assert isinstance(driver.ends[request_id][0].error, DeadlineExceeded)


def test_more_text_than_counted_is_an_error_not_an_answer() -> None:
    driver, request_id = streaming_driver(4)
    short = GoldenText(GOLDEN.pieces[:3])
    driver.receive(COSCHEDULER, finished(request_id, short))
    assert isinstance(driver.ends[request_id][0].error, InternalError)


def test_a_wanted_cancel_ends_without_an_error_and_keeps_the_text() -> None:
    driver, request_id = streaming_driver(2)
    driver.session.cancel(request_id)
    driver.session.cancel(request_id)
    assert driver.take_sent(COSCHEDULER) == [CancelRequest(request_id)]
    message = failed(request_id, Cancelled("as you wished"), num_tokens=2, num_chars=5)
    driver.receive(COSCHEDULER, msgspec.structs.replace(message, finish_reason="cancelled"))
    [end] = driver.ends[request_id]
    assert (end.finish_reason, end.error) == ("cancelled", None)


def test_a_cancel_that_nobody_asked_for_is_raised() -> None:
    driver, request_id = streaming_driver(2)
    driver.receive(
        COSCHEDULER, failed(request_id, Cancelled("operator"), num_tokens=2, num_chars=5)
    )
    assert isinstance(driver.ends[request_id][0].error, Cancelled)


def test_a_cancel_is_repeated_on_a_new_connection_and_while_unanswered() -> None:
    driver, request_id = streaming_driver(2)
    driver.session.cancel(request_id)
    driver.take_sent()
    driver.connect(COSCHEDULER)
    assert CancelRequest(request_id) in driver.take_sent(COSCHEDULER)
    driver.advance(LIMITS.silence_s + 1)
    assert CancelRequest(request_id) in driver.take_sent(COSCHEDULER)


def test_an_abandoned_request_is_cancelled_silently_and_acknowledged() -> None:
    driver, request_id = streaming_driver(2)
    driver.session.abandon(request_id)
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 2, 4))
    driver.receive(COSCHEDULER, finished(request_id, reason="cancelled"))
    assert driver.take_sent(COSCHEDULER) == [CancelRequest(request_id), AckFinished(request_id)]
    assert request_id not in driver.ends
    assert driver.ids(request_id) == GOLDEN.ids[:2]
    assert driver.session.num_open == 0


def test_an_abandoned_request_is_not_ordered_again_on_reconnect() -> None:
    driver, request_id = streaming_driver(2)
    driver.session.abandon(request_id)
    driver.connect(COSCHEDULER)
    sent = driver.take_sent(COSCHEDULER)
    assert sent == [CancelRequest(request_id)] * 2


def test_an_abandoned_request_that_was_never_sent_is_forgotten_at_once() -> None:
    driver = SessionDriver()
    driver.session.abandon(driver.submit())
    assert driver.session.num_open == 0
    driver.connect(COSCHEDULER)
    assert driver.take_sent() == []


def test_a_repeated_final_message_is_acknowledged_again_without_a_second_end() -> None:
    driver, request_id = streaming_driver(0)
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 0, 6))
    driver.receive(COSCHEDULER, finished(request_id), finished(request_id))
    assert len(driver.ends[request_id]) == 1
    assert driver.take_sent(COSCHEDULER) == [AckFinished(request_id)] * 2


def test_an_acceptance_of_a_request_given_up_is_answered_by_a_cancel() -> None:
    driver = connected_driver()
    driver.receive(COSCHEDULER, RequestAccepted(b"x" * 16, 0, 1))
    assert driver.take_sent(COSCHEDULER) == [CancelRequest(b"x" * 16)]


@pytest.mark.parametrize(("is_connected", "expected"), [(False, PeerGone), (True, ChannelTimeout)])
def test_a_silent_server_ends_requests_within_the_limit(
    is_connected: bool, expected: type[Exception]
) -> None:
    driver = connected_driver() if is_connected else SessionDriver()
    request_id = driver.submit()
    driver.advance(LIMITS.answer_timeout_s - 0.1)
    assert request_id not in driver.ends
    driver.advance(0.2)
    [end] = driver.ends[request_id]
    assert type(end.error) is expected


def test_a_slow_but_living_server_is_waited_for() -> None:
    driver = connected_driver()
    request_id = driver.submit()
    for _ in range(20):
        driver.advance(LIMITS.resend_s)
        for message in driver.take_sent(COSCHEDULER):
            if isinstance(message, QueryHealth):
                answer = HealthReport(request_id=message.request_id, is_ready=True, status="ready")
                driver.receive(COSCHEDULER, answer)
    assert request_id not in driver.ends


def test_an_unanswered_order_is_repeated() -> None:
    driver = connected_driver()
    driver.submit()
    driver.take_sent()
    driver.advance(LIMITS.resend_s)
    assert any(isinstance(m, SubmitRequest) for m in driver.take_sent(COSCHEDULER))


def test_a_stream_outlives_an_absent_coscheduler_while_its_text_comes() -> None:
    driver, request_id = streaming_driver(0)
    for index in range(len(GOLDEN.ids)):
        driver.advance(LIMITS.answer_timeout_s - 1)
        driver.receive(TEXT0, *GOLDEN.deltas(request_id, index, index + 1))
    assert request_id not in driver.ends
    driver.connect(COSCHEDULER)
    driver.receive(COSCHEDULER, finished(request_id))
    assert driver.ends[request_id][0].error is None


def test_a_requests_own_deadline_holds_even_when_the_server_says_nothing() -> None:
    driver = connected_driver()
    request_id = driver.submit(timeout_s=2.0)
    driver.take_sent()
    driver.advance(2.0)
    assert request_id not in driver.ends
    driver.advance(LIMITS.deadline_grace_s)
    assert isinstance(driver.ends[request_id][0].error, DeadlineExceeded)
    assert CancelRequest(request_id) in driver.take_sent(COSCHEDULER)


def test_questions_are_answered_once_and_repeated_on_reconnect() -> None:
    driver = SessionDriver()
    question = TokenizePrompt(b"t" * 16, TextPrompt("hi"))
    driver.session.ask(COSCHEDULER, question)
    driver.connect(COSCHEDULER)
    driver.connect(COSCHEDULER)
    assert driver.take_sent(COSCHEDULER) == [question, question]
    reply = PromptTokenized(b"t" * 16, [1, 2])
    driver.receive(COSCHEDULER, reply, reply)
    [answer] = driver.answers[b"t" * 16]
    assert answer.message == reply


def test_an_error_in_an_answer_is_the_answers_error() -> None:
    driver = connected_driver()
    driver.session.ask(COSCHEDULER, TokenizePrompt(b"t" * 16, TextPrompt("hi")))
    info = ErrorInfo.of(QueueFull("full"))
    driver.receive(COSCHEDULER, PromptTokenized(b"t" * 16, [], info))
    assert isinstance(driver.answers[b"t" * 16][0].error, QueueFull)


@pytest.mark.parametrize(("is_connected", "expected"), [(False, PeerGone), (True, ChannelTimeout)])
def test_a_question_has_its_own_time_limit(is_connected: bool, expected: type[Exception]) -> None:
    driver = SessionDriver()
    driver.session.ask(ADMIN, ListProcesses(b"l" * 16), 2.0)
    assert driver.session.take_peers_to_open() == [ADMIN]
    if is_connected:
        driver.connect(ADMIN)
    driver.advance(1.9)
    assert driver.answers == {}
    driver.advance(0.2)
    [answer] = driver.answers[b"l" * 16]
    assert type(answer.error) is expected


def test_a_question_with_a_short_time_limit_is_repeated_within_it() -> None:
    driver = SessionDriver()
    driver.session.ask(ADMIN, ListProcesses(b"l" * 16), LIMITS.resend_s)
    driver.connect(ADMIN)
    driver.take_sent(ADMIN)
    driver.advance(LIMITS.resend_s * 0.3)
    assert driver.take_sent(ADMIN) == [ListProcesses(b"l" * 16)]


def test_a_stop_order_is_repeated_until_it_is_answered() -> None:
    driver = SessionDriver()
    driver.session.ask(ADMIN, StopTree(b"s" * 16))
    driver.connect(ADMIN)
    for _ in range(2):
        assert driver.take_sent(ADMIN) == [StopTree(b"s" * 16)]
        driver.advance(LIMITS.resend_s * 1.1)
    driver.receive(ADMIN, StopAccepted(b"s" * 16))
    assert driver.answers[b"s" * 16][0].message == StopAccepted(b"s" * 16)


def test_fail_all_ends_every_request_and_question_once() -> None:
    driver, request_id = streaming_driver(2)
    driver.session.ask(COSCHEDULER, QueryHealth(b"h" * 16))
    driver.session.fail_all(lambda: InternalError("the pump stopped"))
    driver.collect()
    assert isinstance(driver.ends[request_id][0].error, InternalError)
    assert isinstance(driver.answers[b"h" * 16][0].error, InternalError)
    assert driver.session.num_open == 0


def test_an_idle_session_wants_no_tick() -> None:
    driver, request_id = streaming_driver(0)
    driver.receive(TEXT0, *GOLDEN.deltas(request_id, 0, 6))
    driver.receive(COSCHEDULER, finished(request_id))
    driver.advance(60.0)
    assert driver.session.next_tick_s == float("inf")


def test_an_order_that_cannot_be_sent_ends_with_the_reason() -> None:
    driver = connected_driver()
    request_id = driver.submit()
    driver.session.ask(COSCHEDULER, TokenizePrompt(b"t" * 16, TextPrompt("hi")))
    driver.take_sent()
    for refused in (request_id, b"t" * 16):
        driver.session.refuse(refused, InvalidRequest("too large"))
    driver.collect()
    assert isinstance(driver.ends[request_id][0].error, InvalidRequest)
    assert isinstance(driver.answers[b"t" * 16][0].error, InvalidRequest)
    assert driver.take_sent() == []
