from __future__ import annotations

import numpy as np
import pytest

from hybridgen.errors import InternalError
from hybridgen.models.step_check import check_decode, check_prefill

BOUNDS = {"num_blocks": 8, "block_size": 16, "vocab_size": 100, "max_positions": 60}


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def prefill(**changes: object) -> None:
    arguments = {"ids": ints(1, 2), "start": 0, "blocks": ints(7, 0, 3, 4), "logits_out": None}
    check_prefill(**{**arguments, **changes}, **BOUNDS)


def decode(**changes: object) -> None:
    arguments = {
        "ids": ints(1, 99),
        "positions": ints(0, 31),
        "block_tables": np.array([[7, -5, 0, 0], [0, 7, 99, 0]], np.int32),
        "logits_out": np.empty((2, 128), np.float32)[:, :100],
    }
    check_decode(**{**arguments, **changes}, **BOUNDS)


def test_steps_within_bounds_pass():
    prefill()
    prefill(start=58, logits_out=np.empty(100, np.float32))
    decode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ints()}, "empty"),
        ({"ids": ints(100)}, "token id"),
        ({"ids": ints(-1)}, "token id"),
        ({"ids": np.array([1, 2])}, "int32"),
        ({"ids": np.arange(8, dtype=np.int32)[::2]}, "contiguous"),
        ({"start": -1}, "does not fit"),
        ({"start": 59}, "does not fit"),
        ({"start": 15, "blocks": ints(1)}, "does not fit"),
        ({"blocks": ints(8)}, "KV block"),
        ({"start": 20, "blocks": ints(1, -1)}, "KV block"),
        ({"logits_out": np.empty(99, np.float32)}, "logits_out"),
        ({"logits_out": np.empty(100)}, "logits_out"),
    ],
)
def test_prefill_out_of_bounds_is_refused(changes, message):
    with pytest.raises(InternalError, match=message):
        prefill(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ints(1)}, "differ in rows"),
        ({"positions": ints(1)}, "differ in rows"),
        ({"ids": ints(1, 100)}, "token id"),
        ({"positions": ints(0, 60)}, "position"),
        ({"positions": ints(0, -1)}, "position"),
        ({"positions": ints(16, 31)}, "KV block"),
        ({"positions": ints(0, 32)}, "KV block"),
        ({"block_tables": ints(1, 2)}, "dimensions"),
        ({"logits_out": np.empty((1, 100), np.float32)}, "logits_out"),
        ({"logits_out": np.empty((2, 200), np.float32)[:, ::2]}, "logits_out"),
    ],
)
def test_decode_out_of_bounds_is_refused(changes, message):
    with pytest.raises(InternalError, match=message):
        decode(**changes)


def test_read_only_logits_are_refused():
    row = np.zeros(100, np.float32)
    row.flags.writeable = False
    with pytest.raises(InternalError, match="writable"):
        prefill(logits_out=row)
