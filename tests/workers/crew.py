"""Workers of a workplace as threads, for whoever has to wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

TURN_S = 0.01


class Crew:
    """Runs turns in threads; what they raise is raised where the crew is left."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        if self._errors and error is None:
            raise self._errors[0]

    def hire(self, turn: Callable[[float], None]) -> None:
        """Call ``turn(TURN_S)`` over and over."""

        def work() -> None:
            while not self._is_over.is_set():
                turn(TURN_S)

        self.do(work)

    def do(self, work: Callable[[], None]) -> None:
        """Call ``work()`` once, beside the test."""

        def and_keep_error() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # raised again where the crew is left
                self._errors.append(error)

        thread = threading.Thread(target=and_keep_error)
        thread.start()
        self._threads.append(thread)
