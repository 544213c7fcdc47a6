"""Ends of requests are remembered for a while, in bounded memory."""

from __future__ import annotations

import pytest

from hybridgen.messages import RequestFinished
from hybridgen.request import SamplingParams
from hybridgen.scheduler import request_book
from hybridgen.scheduler.request_book import RequestBook
from hybridgen.scheduler.request_record import RequestRecord

CLIENT = b"client-000000000"


def over(number: int) -> RequestRecord:
    record = RequestRecord(
        client_id=CLIENT,
        request_id=f"request-{number:08}".encode(),
        params=SamplingParams(),
        seed=0,
        priority=0,
        arrival=number,
        arrival_s=0.0,
        deadline_s=0.0,
    )
    record.final = RequestFinished(request_id=record.request_id, finish_reason="stop")
    return record


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> RequestBook:
    monkeypatch.setattr(request_book, "MIN_REMEMBERED", 4)
    return RequestBook(1)


def known(book: RequestBook, records: list[RequestRecord]) -> list[int]:
    return [r.arrival for r in records if book.final(CLIENT, r.request_id) is r.final]


def test_the_last_ends_are_remembered_and_no_more_than_twice_as_many(book: RequestBook) -> None:
    records = [over(number) for number in range(20)]
    for count, record in enumerate(records, start=1):
        book.add(record)
        book.remove(record)
        remembered = known(book, records)
        assert remembered == list(range(count))[-len(remembered) :]
        assert min(count, 4) <= len(remembered) <= 8


def test_the_end_of_a_former_request_of_that_name_is_forgotten(book: RequestBook) -> None:
    records = [over(number) for number in range(5)]
    for record in records:
        book.add(record)
        book.remove(record)
    for record in records:
        book.add(record)
        assert book.final(CLIENT, record.request_id) is None
