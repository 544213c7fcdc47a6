"""What an answer turns out to consist of, piece by piece."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """Text for whoever reads the answer."""

    text: str


class CallBegun(NamedTuple):
    """A call of the function ``name``; arguments belong to the last one begun."""

    name: str


class Arguments(NamedTuple):
    """More of the arguments' JSON."""

    text: str


Piece = Content | CallBegun | Arguments


class PieceSink:
    """Collects pieces. White space beside a call belongs to the format and is left out.

    Attributes:
        num_calls: calls begun so far.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self._pieces: list[Piece] = []
        self._spaces = ""
        self._is_beside_call = True  # the first piece may be one

    def content(self, text: str) -> None:
        """Text that is no call."""
        if self._is_beside_call:
            text = self._spaces + text
            if not text.strip():
                self._spaces = text
                return
            self._spaces = ""
            self._is_beside_call = False
        if text:
            self._pieces.append(Content(text))

    def call(self, name: str) -> None:
        """A call begins."""
        self.num_calls += 1
        self._spaces = ""
        self._is_beside_call = True
        self._pieces.append(CallBegun(name))

    def arguments(self, text: str) -> None:
        """More of the arguments of the last call."""
        if text:
            self._pieces.append(Arguments(text))

    def end(self) -> None:
        """Nothing follows."""
        if self._spaces and not self.num_calls:
            self._pieces.append(Content(self._spaces))
        self._spaces = ""

    def take(self) -> list[Piece]:
        """The pieces since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces
