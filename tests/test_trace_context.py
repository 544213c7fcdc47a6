from __future__ import annotations

import pytest

from hybridgen.trace_context import TraceContext

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"


def test_a_traceparent_is_read_and_written_again() -> None:
    context = TraceContext.parse(GIVEN)
    assert context == TraceContext(TRACE, PARENT, 1)
    assert str(context) == GIVEN


def test_a_later_version_may_be_longer() -> None:
    assert TraceContext.parse(f"01-{TRACE}-{PARENT}-00-more") == TraceContext(TRACE, PARENT, 0)


@pytest.mark.parametrize(
    "value",
    [
        *("", "x", GIVEN.upper(), GIVEN + "-more", GIVEN[:-1], GIVEN + "\n", "é" + GIVEN),
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"01-{TRACE}-{PARENT}-00-{'m' * 300}",
    ],
)
def test_what_is_malformed_counts_as_none(value: str) -> None:
    assert TraceContext.parse(value) is None
