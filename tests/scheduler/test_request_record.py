from __future__ import annotations

import math

from hybridgen.errors import GrammarSpent
from hybridgen.scheduler.request_record import Ending, FinishedRequest


def test_the_log_line_of_a_request_is_for_people() -> None:
    done = FinishedRequest(b"\x12" * 16, 3, "stop", "", 7, 50, 0.0029, 0.0905, 1, 0)
    assert str(done) == (
        f"request {'12' * 16}: stop, 7 + 50 tokens, 0.090 s (0.003 queued), slot 3, 1 preemptions"
    )


def test_a_request_that_never_ran_says_so() -> None:
    refused = FinishedRequest(
        b"\0" * 16, 0, "error", "invalid_request", 0, 0, math.nan, 0.002, 0, 0
    )
    assert "error invalid_request, 0 + 0 tokens, 0.002 s (never ran)" in str(refused)


def test_a_spent_grammar_is_still_one_after_a_restart() -> None:
    ending = Ending.of(GrammarSpent("over"))
    restored = Ending.restored(ending.reason, ending.end_error)
    assert restored.error is not None
    assert restored.error.code == "grammar_spent"
