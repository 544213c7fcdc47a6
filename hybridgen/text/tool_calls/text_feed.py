"""Text that arrives in pieces, for a reader that may have to wait in the middle of it.

Readers are generators: each ``yield`` waits for more text. None comes after ``is_complete``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

_Result = TypeVar("_Result")
Reading = Generator[None, None, _Result]

SPACES = " \t\r\n"


class TextFeed:
    """A text and how far it has been read.

    Attributes:
        text: what arrived and is not forgotten.
        position: where reading goes on in it; a reader may set it back.
        is_complete: nothing more arrives.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_complete = False

    def push(self, text: str) -> None:
        """More text."""
        self.text += text

    def forget(self) -> None:
        """Nobody will go back to what was read.

        It is dropped once it is half of the text: so no character is copied often, however many
        calls a long text has.
        """
        if 2 * self.position >= len(self.text):
            self.text = self.text[self.position :]
            self.position = 0

    def peek(self) -> Reading[str]:
        """The next character; empty at the end."""
        while self.position == len(self.text) and not self.is_complete:
            yield
        return self.text[self.position : self.position + 1]

    def take_all(self, chars: str, max_chars: int) -> Reading[str]:
        """Take the characters that are among ``chars``, up to a limit."""
        taken = ""
        while len(taken) < max_chars:
            char = yield from self.peek()
            if not char or char not in chars:
                break
            taken += char
            self.position += 1
        return taken

    def skip(self, chars: str = SPACES) -> Reading[None]:
        """Pass over characters that are among ``chars``."""
        while (char := (yield from self.peek())) and char in chars:
            self.position += 1

    def skip_mark(self, mark: str) -> Reading[bool]:
        """Pass over ``mark`` if it comes next; whether it did."""
        while True:
            arrived = self.text[self.position : self.position + len(mark)]
            if arrived == mark:
                self.position += len(mark)
                return True
            if self.is_complete or not mark.startswith(arrived):
                return False
            yield

    def pass_until(self, marks: Sequence[str], tell: Callable[[str], None]) -> Reading[str]:
        """Tell all text before the first of ``marks``; that mark, or nothing at the end."""
        while True:
            found = [
                (index, mark)
                for mark in marks
                if (index := self.text.find(mark, self.position)) >= 0
            ]
            if found:
                index, mark = min(found)
                tell(self.text[self.position : index])
                self.position = index
                return mark
            end = len(self.text) if self.is_complete else self._end_of_free(marks)
            tell(self.text[self.position : end])
            self.position = end
            self.forget()
            if self.is_complete:
                return ""
            yield

    def _end_of_free(self, marks: Sequence[str]) -> int:
        """Where a mark may begin at the end of the text."""
        end = len(self.text)
        for mark in marks:
            index = self.text.find(mark[0], max(self.position, len(self.text) - len(mark) + 1))
            while 0 <= index < end:
                if mark.startswith(self.text[index:]):
                    end = index
                index = self.text.find(mark[0], index + 1)
        return end
