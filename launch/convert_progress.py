"""How far a conversion is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

#: Between two plain lines.
LINE_S = 5.0


class ConvertProgress:
    """A context; called with the share done, 0 … 1.

    Args:
        stream: usually standard error.
        num_bytes: of the source, for the rate.
        clock: monotonic, in seconds.
    """

    def __init__(self, stream: TextIO, num_bytes: int, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._num_bytes = num_bytes
        self._clock = clock
        self._started_s = self._told_s = clock()
        self._bar: Any = None

    def __enter__(self) -> ConvertProgress:
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = _rich_bar(self._stream)
            self._task = self._bar.add_task("convert", total=self._num_bytes)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._started_s

    def __call__(self, share: float) -> None:
        """This much is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=share * self._num_bytes)
            return
        now_s = self._clock()
        if now_s - self._told_s >= LINE_S or share >= 1.0:
            self._told_s = now_s
            print(progress_line(share, self._num_bytes, self.elapsed_s), file=self._stream)


def progress_line(share: float, num_bytes: int, elapsed_s: float) -> str:
    """``convert  40 %, 0.61 GB/s, 12 s left``."""
    rate = share * num_bytes / elapsed_s if elapsed_s > 0 else 0.0
    line = f"convert {share:4.0%}, {rate / 1e9:.2f} GB/s"
    if share <= 0 or share >= 1:
        return f"{line}, {elapsed_s:.1f} s"
    return f"{line}, {elapsed_s / share - elapsed_s:.0f} s left"


def _rich_bar(stream: TextIO) -> Any:
    from rich.console import Console  # noqa: PLC0415  # only on a terminal
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
    )
