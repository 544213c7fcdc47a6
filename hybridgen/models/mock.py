"""An engine without weights: logits are a keyed hash of the context.

It behaves like a model where that matters to the rest of the system: it reads what earlier calls
left in the KV blocks, so a block that was wrongly shared, lost or overwritten changes the output.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hybridgen.errors import InternalError
from hybridgen.models.engine import FloatArray, IntArray
from hybridgen.models.step_check import check_decode, check_prefill

_Words = npt.NDArray[np.uint64]

#: Windows of each of the two random tables; a row is the sum of one window of each.
_NUM_WINDOWS = 4096
#: Range of the logits is twice this: peaked enough that temperature 0.7 is not noise.
_LOGIT_SCALE = 8.0
_WORD_MASK = 2**64 - 1


def _mix(words: _Words) -> _Words:
    """Finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection that scatters every bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_one(word: int) -> int:
    """``_mix`` of one word."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD_MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD_MASK
    return word ^ word >> 31


def _token_words(ids: IntArray, positions: npt.NDArray[np.int64]) -> _Words:
    words = ids.astype(np.uint64) << np.uint64(32) | positions.astype(np.uint64)
    return _mix(words + np.uint64(0x9E3779B97F4A7C15))


class MockEngine:
    """Implements ``Engine`` with numpy alone.

    Per (block, offset) a running sum of scattered (token, position) words is kept. A row's hash
    combines the running sum at its position with those at the end of every full block before it:
    for an undisturbed sequence a pure function of its tokens.

    Args:
        vocab_size: length of a logits row.
        num_blocks: KV blocks.
        step_us: least time of a decode step or a prefill chunk.
        eos_id: token whose logit ``eos_bias`` is added to.
        eos_bias: raises or lowers how soon texts end.
        sleep: waits the given seconds (tests pass their own).
    """

    def __init__(
        self,
        vocab_size: int,
        num_blocks: int,
        *,
        step_us: int = 0,
        eos_id: int = 257,
        eos_bias: float = 0.0,
        block_size: int = 16,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 <= eos_id < vocab_size:
            raise InternalError("eos_id is no token", value=eos_id, limit=vocab_size - 1)
        self.vocab_size = vocab_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._step_s = step_us * 1e-6
        self._sleep = sleep
        self._eos_id = eos_id
        self._eos_bias = np.float32(eos_bias)
        self._sums: _Words = np.zeros((num_blocks, block_size), np.uint64)
        table = np.random.default_rng(20_240_229).random(
            (2, _NUM_WINDOWS + vocab_size), dtype=np.float32
        )
        self._windows = np.lib.stride_tricks.sliding_window_view(
            table * np.float32(_LOGIT_SCALE), vocab_size, axis=1
        )

    def prefill(
        self, ids: IntArray, start: int, blocks: IntArray, logits_out: FloatArray | None
    ) -> None:
        """See ``Engine.prefill``."""
        check_prefill(ids, start, blocks, logits_out, **self._bounds())
        positions = np.arange(start, start + len(ids), dtype=np.int64)
        sums = np.cumsum(_token_words(ids, positions), dtype=np.uint64)
        if start:
            before = start - 1
            sums += self._sums[blocks[before // self.block_size], before % self.block_size]
        self._sums[blocks[positions // self.block_size], positions % self.block_size] = sums
        if logits_out is not None:
            self._write_row(int(sums[-1]), int(positions[-1]), blocks, logits_out)
        if self._step_s:
            self._sleep(self._step_s)

    def decode(
        self,
        ids: IntArray,
        positions: IntArray,
        block_tables: IntArray,
        logits_out: FloatArray,
    ) -> None:
        """See ``Engine.decode``."""
        check_decode(ids, positions, block_tables, logits_out, **self._bounds())
        where = positions.astype(np.int64)
        rows = np.arange(len(ids))
        before = np.maximum(where - 1, 0)
        previous = self._sums[
            block_tables[rows, before // self.block_size], before % self.block_size
        ]
        sums = np.where(where > 0, previous, np.uint64(0)) + _token_words(ids, where)
        self._sums[block_tables[rows, where // self.block_size], where % self.block_size] = sums
        self._write_rows(sums, where, block_tables, logits_out)
        if self._step_s:
            self._sleep(self._step_s)

    def close(self) -> None:
        """See ``Engine.close``; there is nothing to give back."""

    def _bounds(self) -> dict[str, int]:
        return {
            "max_positions": self.num_blocks * self.block_size,
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "vocab_size": self.vocab_size,
        }

    def _write_row(
        self, word: int, position: int, blocks: IntArray, logits_out: FloatArray
    ) -> None:
        """As ``_write_rows`` for one row: for so little, numbers are cheaper than arrays."""
        width = position // self.block_size
        for index, end in enumerate(self._sums[blocks[:width], self.block_size - 1].tolist()):
            word += end * (2 * index + 1)
        word = _mix_one(word & _WORD_MASK)
        first, second = word % _NUM_WINDOWS, (word >> 32) % _NUM_WINDOWS
        np.add(self._windows[0][first], self._windows[1][second], out=logits_out)
        logits_out[self._eos_id] += self._eos_bias

    def _write_rows(
        self,
        sums: _Words,
        positions: npt.NDArray[np.int64],
        block_tables: IntArray,
        logits_out: FloatArray,
    ) -> None:
        width = int(positions.max()) // self.block_size
        full = np.arange(width) < (positions // self.block_size)[:, None]
        # Padding may hold any number, so it is replaced before it is followed.
        ends = self._sums[np.where(full, block_tables[:, :width], 0), self.block_size - 1]
        weights = np.arange(1, 2 * width, 2, dtype=np.uint64)
        words = _mix(sums + (np.where(full, ends, np.uint64(0)) * weights).sum(1, dtype=np.uint64))
        first = (words % np.uint64(_NUM_WINDOWS)).astype(np.int64)
        second = ((words >> np.uint64(32)) % np.uint64(_NUM_WINDOWS)).astype(np.int64)
        np.add(self._windows[0][first], self._windows[1][second], out=logits_out)
        logits_out[:, self._eos_id] += self._eos_bias
