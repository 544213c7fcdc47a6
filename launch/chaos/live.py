"""How a run goes, while it goes: a line that changes on a terminal, one now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hybridgen.launch.chaos.history import History

PLAIN_EVERY_S = 5.0


class LiveReport:
    """Shows progress on ``stream`` until it is left.

    Args:
        stream: standard error, mostly.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown_s = 0.0
        self._last = (0.0, 0)

    def __enter__(self) -> LiveReport:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def progress(self, name: str, history: History, num_tokens: int) -> None:
        """Show what a scenario has come to."""
        now_s = time.monotonic()
        if not self._console.is_terminal and now_s - self._shown_s < PLAIN_EVERY_S:
            return
        then_s, then_tokens = self._last
        speed = max(0.0, (num_tokens - then_tokens) / max(0.001, now_s - then_s))
        self._last, self._shown_s = (now_s, num_tokens), now_s
        line = (
            f"{name}  {now_s - history.begun_s:4.0f} s  {len(history.blows)} kills  "
            f"{len(history.records)} requests  {speed:.0f} tokens/s"
        )
        if history.blows:
            blow = history.blows[-1]
            line += f"  last: {blow.name} {blow.how} {now_s - blow.at_s:.1f} s ago"
        if self._console.is_terminal:
            self._live.update(Text(line), refresh=True)
        else:
            print(line, file=self._stream, flush=True)

    def say(self, lines: list[str]) -> None:
        """Print lines that stay."""
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)
