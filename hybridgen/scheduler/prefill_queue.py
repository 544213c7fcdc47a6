"""Prompts that wait for a device, and how they are packed into pieces."""

from __future__ import annotations

import collections
from typing import NamedTuple

from hybridgen.scheduler.device_row import MAX_CONTINUED, DeviceRow

#: A prompt of several pieces gives a piece at least this share of it, or is left for the next.
_LEAST_SHARE = 8


class PromptPart(NamedTuple):
    """Tokens ``start`` … ``stop - 1`` of a row's prompt."""

    row: DeviceRow
    start: int
    stop: int


class PrefillQueue:
    """Rows in the order of their turns; pure.

    A row is here as long as it has blocks for tokens that were not given out.
    Prompts longer than a piece take turns with the others, so that a short one does not wait for
    a long one. What is left of a prompt goes first once it fits into one piece.
    """

    def __init__(self) -> None:
        self._rows: collections.deque[DeviceRow] = collections.deque()
        self._num_tokens = 0

    def __len__(self) -> int:
        """Prompts of which a part can be given out."""
        return len(self._rows)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that can be given out."""
        return self._num_tokens

    def add(self, row: DeviceRow) -> None:
        """Let a prompt wait for its turn."""
        self._rows.append(row)
        self._num_tokens += row.num_covered - row.num_computed

    def cover(self, row: DeviceRow, num_tokens: int) -> None:
        """There are blocks for so many of the prompt's tokens now."""
        if row in self._rows:
            self._num_tokens += num_tokens - row.num_covered
            row.num_covered = num_tokens
        elif num_tokens > row.num_covered:
            row.num_covered = num_tokens
            self.add(row)

    def discard(self, row: DeviceRow) -> None:
        """Forget a row, if it waits."""
        if row in self._rows:
            self._rows.remove(row)
            self._num_tokens -= row.num_covered - row.num_computed

    def take(self, max_tokens: int, max_last: int) -> list[PromptPart]:
        """One piece: parts of different rows, in turn; counted as computed from now on.

        Args:
            max_tokens: of all parts together.
            max_last: parts that may be the last of their prompts. Where the next in turn would be
                one too many, the piece ends: nobody overtakes it.
        """
        parts: list[PromptPart] = []
        room, num_continued = max_tokens, 0
        while self._rows and room > 0:
            row = self._rows[0]
            start, rest = row.num_computed, row.num_covered - row.num_computed
            size = min(rest, room)
            is_last = start + size == row.num_tokens
            if is_last and max_last == 0:
                break
            if size < rest and not _is_worth_splitting(rest, room, max_tokens):
                break
            if start > 0 and num_continued == MAX_CONTINUED:
                break
            self._rows.popleft()
            row.num_computed += size
            parts.append(PromptPart(row, start, start + size))
            room -= size
            num_continued += start > 0
            max_last -= is_last
            if size < rest:
                self._put_back(row, max_tokens)
        self._num_tokens -= max_tokens - room
        return parts

    def _put_back(self, row: DeviceRow, max_tokens: int) -> None:
        if row.num_covered - row.num_computed <= max_tokens:
            self._rows.appendleft(row)
        else:
            self._rows.append(row)


def _is_worth_splitting(rest: int, room: int, max_tokens: int) -> bool:
    """Whether a piece with this much room takes a part of a prompt that does not fit into it.

    A part that does not begin the prompt has to read what came before, so a prompt that fits whole
    into the next piece is not split for the sake of a piece that is at least half full.
    """
    if 2 * room > max_tokens:
        return True
    return rest > max_tokens and _LEAST_SHARE * room >= max_tokens
