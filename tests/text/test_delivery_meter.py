"""Time to first token and between tokens, as a client's socket saw them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from hybridgen.ipc.board import Board, Role
from hybridgen.messages import TextDelta
from hybridgen.text.delivery_meter import MAX_LINES_PER_S, DeliveryMeter

REQUEST_ID = b"\xab" * 16


class Stage:
    """A meter over a board, and one text that arrived at second 10."""

    def __init__(self) -> None:
        self.board = Board.in_memory(1)
        line = self.board.line(0)
        line.begin(1, 1, Role.DETOKENIZER, 0, 1)
        self.meter = DeliveryMeter(line)
        self.text: Any = SimpleNamespace(request_id=REQUEST_ID, arrival_s=10.0, last_sent_s=None)

    def send(self, offset: int, num_tokens: int, now_s: float) -> None:
        delta = TextDelta(REQUEST_ID, offset, 0, "x", list(range(num_tokens)))
        self.meter.sent([(self.text, delta)], now_s)
        if num_tokens:
            self.text.last_sent_s = now_s

    def seen(self, name: str) -> tuple[int, float]:
        counts = self.board.histograms(0)[name]
        return counts.num_values, counts.sum / 1e9


def test_the_first_piece_counts_from_arrival_and_later_ones_from_the_one_before() -> None:
    stage = Stage()
    stage.send(0, 1, 10.25)
    stage.send(1, 1, 10.35)
    assert stage.seen("ttft") == (1, pytest.approx(0.25))
    assert stage.seen("inter_token") == (1, pytest.approx(0.1))


def test_tokens_of_one_piece_share_its_gap() -> None:
    stage = Stage()
    stage.send(0, 2, 11.0)
    stage.send(2, 4, 12.0)
    assert stage.seen("inter_token") == (4, pytest.approx(1.0))


def test_a_successor_counts_no_first_token_that_was_sent_before() -> None:
    stage = Stage()
    stage.send(7, 3, 20.0)
    stage.send(10, 1, 20.5)
    assert stage.seen("ttft") == (0, 0)
    assert stage.seen("inter_token") == (1, pytest.approx(0.5))


def test_text_without_tokens_counts_as_no_token() -> None:
    stage = Stage()
    stage.send(0, 0, 11.0)
    assert stage.seen("ttft") == (0, 0)
    counters = stage.board.snapshot(0).counters
    assert (counters["sent_tokens"], counters["deltas"], counters["frames"]) == (0, 1, 1)


def test_sent_tokens_are_what_clients_got() -> None:
    stage = Stage()
    stage.send(0, 2, 11.0)
    stage.send(2, 5, 12.0)
    assert stage.board.snapshot(0).counters["sent_tokens"] == 7


def test_debug_says_when_each_piece_went_out_and_not_more_than_so_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "hybridgen.tokens"):
        stage = Stage()
        stage.send(0, 1, 10.000_123)
        for index in range(3 * MAX_LINES_PER_S):
            stage.send(1 + index, 1, 11.0)
    first = caplog.records[0]
    assert first.getMessage() == (
        f"request {REQUEST_ID.hex()}: tokens 0 to 0 sent 123 µs after it arrived"
    )
    assert first.__dict__["request_id"] == REQUEST_ID.hex()
    assert len(caplog.records) <= 2 * MAX_LINES_PER_S  # a second may end in between


def test_nothing_is_said_at_other_levels(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hybridgen.tokens"):
        Stage().send(0, 1, 11.0)
    assert not caplog.records
