from __future__ import annotations

import io

import pytest

from hybridgen.launch.chaos.live import PLAIN_EVERY_S, LiveReport
from tests.launch.chaos.histories import whole_history


def test_without_a_terminal_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now_s = io.StringIO(), 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with LiveReport(stream) as live:
        live.progress("mixed", whole_history(), 10)
        live.progress("mixed", whole_history(), 20)
        now_s += PLAIN_EVERY_S
        live.progress("mixed", whole_history(), 1010)
        live.say(["ok [brackets]"])
    first, second, last = stream.getvalue().splitlines()
    assert "mixed" in first
    assert "200 tokens/s" in second
    assert last == "ok [brackets]"
