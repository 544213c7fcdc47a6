"""What samplers and device are told of the rows of one step on a device that runs ahead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridgen.scheduler.batch_row import HEADER_DTYPE
from hybridgen.scheduler.device_arrays import DeviceArrays
from hybridgen.scheduler.device_row import DeviceRow
from hybridgen.scheduler.row_parameters import BASE_WORD, FLAGS_WORD, HAS_CUT, HAS_TOKEN


def step_records(
    arrays: DeviceArrays,
    first: Sequence[DeviceRow],
    lanes: NDArray[np.uint32],
    *,
    is_on_device: bool,
) -> NDArray[np.void]:
    """hg_row records: of the rows that are decoded, then of those that bring first logits.

    Args:
        arrays: the rows that are decoded.
        first: the others.
        lanes: uint32, sampler of each row; may be longer.
        is_on_device: the device chooses the tokens.
    """
    num_decode = len(arrays.rows)
    records = np.zeros(num_decode + len(first), HEADER_DTYPE)
    records[:num_decode] = arrays.headers[:num_decode]
    for offset, row in enumerate(first, start=num_decode):
        records[offset] = (row.slot, 0, row.epoch, 0, row.detokenizer, 0)
    records["position"] = step_positions(arrays, first)
    records["flags"] = np.where(plain_rows(arrays, first), HAS_CUT, 0)
    if is_on_device:
        records["flags"] |= HAS_TOKEN
    records["lane"] = lanes[: len(records)]
    return records


def step_positions(arrays: DeviceArrays, first: Sequence[DeviceRow]) -> NDArray[np.int64]:
    """Positions of the tokens to choose, int64[num_rows]."""
    decoded = arrays.positions[: len(arrays.rows)].astype(np.int64) + 1
    return np.concatenate([decoded, np.array([row.num_tokens for row in first], np.int64)])


def plain_rows(arrays: DeviceArrays, first: Sequence[DeviceRow]) -> NDArray[np.bool_]:
    """Rows of the step whose tokens follow from the logits as they are, bool[num_rows]."""
    return step_positions(arrays, first) >= _plain_from(arrays, first)


def become_plain(arrays: DeviceArrays) -> bool:
    """Whether this is the first step that a decoded row is plain in."""
    num_decode = len(arrays.rows)
    return bool((arrays.positions[:num_decode] + 1 == arrays.plain_from[:num_decode]).any())


def _plain_from(arrays: DeviceArrays, first: Sequence[DeviceRow]) -> NDArray[np.int64]:
    decoded = arrays.plain_from[: len(arrays.rows)]
    others = [row.parameters.plain_from for row in first]
    return np.concatenate([decoded, np.array(others, np.int64)])


def step_parameters(
    arrays: DeviceArrays, first: Sequence[DeviceRow], step: int
) -> NDArray[np.int32]:
    """int32[num_rows, 8] of the same rows, in the same order (see ``row_parameters``).

    A row's base plus the step is the position of the token to choose, as long as it runs; in
    arithmetic of 32 bits, which a step number outgrows within weeks.
    """
    num_decode = len(arrays.rows)
    words = np.zeros((num_decode + len(first), arrays.parameters.shape[1]), np.int32)
    words[:num_decode] = arrays.parameters[:num_decode]
    for offset, row in enumerate(first, start=num_decode):
        words[offset] = row.parameters.words
    words[:, BASE_WORD] = (step_positions(arrays, first) - step).astype(np.int32)
    words[~plain_rows(arrays, first), FLAGS_WORD] = 0
    return words
