"""Follows the grammars of the rows that a sampler has, and says which tokens may come next.

Nothing here is worth keeping: a grammar and its text lie in shared memory, so whoever lacks the
state of a row, because it is new here or its sampler died, replays the tokens that there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridgen.errors import InvalidRequest
from hybridgen.ipc.slot_table import SlotState, SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.sampling import _native, parameters
from hybridgen.sampling.lazy_matchers import LazyMatchers

if TYPE_CHECKING:
    from llguidance import LLMatcher

#: Tokens that a matcher is given at once; behind as many there is a beat.
REPLAYED_PER_BEAT = 256


@dataclasses.dataclass(slots=True)
class _Row:
    """A text under a grammar."""

    epoch: int
    matcher: LLMatcher
    position: int  # of the first token that the matcher was not given


class RowMasks:
    """Computes the masks that a lane lacks.

    Args:
        slots: where grammars and lengths stand.
        tokens: where the texts stand.
        matchers: of the model.
        beat: called every few milliseconds of work, so that nobody thinks that it hangs.
    """

    def __init__(
        self,
        slots: SlotTable,
        tokens: TokenStore,
        matchers: LazyMatchers,
        beat: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._tokens = tokens
        self._matchers = matchers
        self._beat = beat
        self._rows: dict[int, _Row] = {}

    def __len__(self) -> int:
        """Rows that are being followed."""
        return len(self._rows)

    def fill(self, lane: _native.Lane, step: int) -> int:
        """Give ``lane`` the masks that rows of ``step`` wait for, else those of the next tokens.

        Returns:
            How many were computed.
        """
        due = lane.due_masks(step)
        for slot, epoch, position in due:
            lane.set_mask(slot, epoch, position, self._mask(slot, epoch, position))
            self._beat()
        return len(due)

    def _mask(self, slot: int, epoch: int, position: int) -> bytes | None:
        row = self._rows.get(slot)
        if row is None or row.epoch != epoch or row.position > position:
            row = self._open(slot, epoch)
        if row is None:
            return None
        while row.position < position:
            end = min(row.position + REPLAYED_PER_BEAT, position)
            row.matcher.consume_tokens(self._tokens.read(slot, row.position, end))
            row.position = end
            if end < position:
                self._beat()
        mask = row.matcher.compute_bitmask()
        return None if row.matcher.is_error() else mask

    def _open(self, slot: int, epoch: int) -> _Row | None:
        self._forget_others()
        view = self._slots.parameters(slot)
        grammar = parameters.unpack(view, self._slots.grammar(slot)).params.grammar
        prompt_len = self._slots.load(slot, SlotWord.PROMPT_LEN)
        if grammar is None or self._slots.load(slot, SlotWord.EPOCH) != epoch:
            return None  # the slot has another occupant by now: nobody looks at this mask
        try:
            matcher = self._matchers.start(grammar)
        except InvalidRequest:
            # A tokenizer compiled it within the same limits, so this is a bug or the memory of
            # another; the row ends with an error that says it cannot go on.
            return None
        self._rows[slot] = _Row(epoch, matcher, prompt_len)
        return self._rows[slot]

    def _forget_others(self) -> None:
        """Drop the rows whose requests are over."""
        for slot, row in list(self._rows.items()):
            is_there = self._slots.load(slot, SlotWord.EPOCH) == row.epoch
            state = self._slots.load(slot, SlotWord.STATE)
            if not is_there or state in (SlotState.FREE, SlotState.FINISHED):
                del self._rows[slot]
