"""How much of prompts a device computes beside a decode step: pure, told of what happens."""

from __future__ import annotations

#: Pieces are multiples of this where they can: products are made in tiles.
WHOLE_TOKENS = 128
#: A piece beside a step: products of so many tokens are at nearly full speed.
WHOLE_PIECE = 2048
#: Fewer tokens take as long: weights are read once per piece, and layers enqueued.
LEAST_TOKENS = 256
#: While this many prompt tokens wait for each running row, throughput goes before latency.
CROWDED_TOKENS_PER_ROW = 64
#: Whole pieces between two steps then: 8,192 tokens, the usual size of a batch of prompts in
#: servers that mix both. By estimate; its share in a burst's throughput was not measured alone.
CROWDED_PIECES = 4
#: After a piece that the device had no memory for the next ones are half as large, down to this …
LEAST_PIECE = 64
#: … and twice as large again after so many.
NUM_GOOD_PIECES = 32
#: A piece that takes longer than the quickest so far raises the estimate by so much at most.
_FORGETTING = 1.05


class PrefillBudget:
    """Says how large the next piece may be, and whether a decode step may go now.

    Prefill goes before decode on the device: a decode step, whose kernels follow each other without
    a gap, would leave it nothing. So what bounds a step's delay is the number of prompt tokens that
    are begun between the ends of two steps:

    - *usually* as many as take ``budget_ms``, at least ``LEAST_TOKENS``. Steps go as they can.
    - *crowded*, while at least a whole piece of prompt tokens waits, and ``CROWDED_TOKENS_PER_ROW``
      or more of them for each row that runs (a start, a burst): the same, but at least
      ``CROWDED_PIECES`` whole pieces. And a step goes only once so many tokens were computed since
      the last one, as long as there is anything to compute: a step of few rows reads all weights
      as a step of many does, and those who wait for a first token are many more than those who
      wait for their next.
    - *nothing runs*: the largest pieces, as many as there is room for.

    So the time between two tokens of a row is at most about that of a step and of the budget
    (crowded: of those pieces, if that is longer).

    Args:
        budget_ms: by which prefill may delay a step.
        max_chunk: tokens of the largest piece, which only an idle batch lets through.
    """

    def __init__(self, budget_ms: float, max_chunk: int) -> None:
        self._budget_ms = budget_ms
        self._max_chunk = max_chunk
        self._whole = min(WHOLE_PIECE, max_chunk)
        self._us_per_token = 0.0  # as measured; 0: not yet
        self._num_running = 0
        self._num_waiting = 0
        self._num_left = self._whole  # tokens that may begin beside the step under way
        self._num_since_step = 0  # tokens computed since the last step was enqueued
        self._largest = max_chunk  # that there is memory for, as far as known
        self._num_good = 0  # pieces since that was changed

    # --- what happened ------------------------------------------------------------------------

    def look(self, num_running: int, num_waiting_tokens: int) -> None:
        """Rows that the next step would decode, and prompt tokens that were not begun."""
        self._num_running = num_running
        self._num_waiting = num_waiting_tokens

    def piece_begun(self, num_tokens: int) -> None:
        """A piece was given to the device."""
        self._num_left -= num_tokens

    def piece_done(self, num_tokens: int, took_ms: float) -> None:
        """The device is through with a piece, and took so long for it."""
        self._num_since_step += num_tokens
        self._num_good += 1
        if self._largest < self._max_chunk and self._num_good >= NUM_GOOD_PIECES:
            self._largest, self._num_good = min(2 * self._largest, self._max_chunk), 0
        if num_tokens < min(LEAST_TOKENS, self._whole) or took_ms <= 0.0:
            return  # says nothing about tokens of a larger one
        measured = took_ms * 1000 / num_tokens
        known = self._us_per_token
        self._us_per_token = min(measured, known * _FORGETTING) if known else measured

    def piece_failed(self, num_tokens: int) -> None:
        """The device had no memory for a piece of so many."""
        self._largest, self._num_good = max(num_tokens // 2, LEAST_PIECE), 0

    def step_begun(self) -> None:
        """A step was enqueued."""
        self._num_since_step = 0

    def step_done(self) -> None:
        """A step is over."""
        self._num_left = self.tokens_per_step()

    # --- what follows -------------------------------------------------------------------------

    @property
    def is_crowded(self) -> bool:
        """Whether throughput goes before latency now."""
        waiting = self._num_waiting
        return waiting >= max(self._whole, CROWDED_TOKENS_PER_ROW * self._num_running)

    def tokens_per_step(self) -> int:
        """Tokens between the ends of two steps: whole pieces, or a part of one."""
        whole = self._whole
        most = whole  # as long as it is not known how long tokens take
        if self._us_per_token:
            most = int(self._budget_ms * 1000 / self._us_per_token)
        if self.is_crowded or most >= whole:
            least = CROWDED_PIECES if self.is_crowded else 1
            return max(least, most // whole) * whole
        return max(min(LEAST_TOKENS, whole), _in_tiles(most))

    def piece_size(self) -> int:
        """Tokens of a piece that may begin now; 0: wait for the end of a step.

        A small rest of the budget is left alone: it would make a piece that costs more than it
        computes.
        """
        if not self._num_running:
            return self._largest
        if 2 * self._num_left < min(self.tokens_per_step(), self._whole):
            return 0
        return _in_tiles(min(self._num_left, self._whole, self._largest))

    def lets_step(self) -> bool:
        """Whether a step may go although pieces are with the device."""
        if not self.is_crowded or not self._num_running:
            return True  # a step of first tokens alone needs no weights
        # The last piece may be half empty, as no prompt fitted in.
        return self._num_since_step + self._whole // 2 >= self.tokens_per_step()


def _in_tiles(num_tokens: int) -> int:
    return num_tokens if num_tokens < WHOLE_TOKENS else num_tokens // WHOLE_TOKENS * WHOLE_TOKENS
