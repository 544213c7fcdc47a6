"""What samplers and device are told of the rows of one step on a device that runs ahead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridgen.scheduler.batch_row import HEADER_DTYPE
from hybridgen.scheduler.device_arrays import DeviceArrays
from hybridgen.scheduler.device_row import DeviceRow
from hybridgen.scheduler.row_parameters import BASE_WORD, HAS_CUT, HAS_TOKEN


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
    records["position"][:num_decode] = arrays.positions[:num_decode]
    records["position"][:num_decode] += 1
    for offset, row in enumerate(first, start=num_decode):
        flags = HAS_CUT if row.parameters.can_cut else 0
        records[offset] = (row.slot, 0, row.epoch, row.num_tokens, row.detokenizer, flags)
    records["flags"][:num_decode] = np.where(arrays.can_cut[:num_decode], HAS_CUT, 0)
    if is_on_device:
        records["flags"] |= HAS_TOKEN
    records["lane"] = lanes[: len(records)]
    return records


def step_parameters(
    arrays: DeviceArrays, first: Sequence[DeviceRow], step: int
) -> NDArray[np.int32]:
    """int32[num_rows, 8] of the same rows, in the same order (see ``row_parameters``).

    A row's base plus the step is the position of the token to choose, as long as it runs.
    """
    num_decode = len(arrays.rows)
    words = np.zeros((num_decode + len(first), arrays.parameters.shape[1]), np.int32)
    words[:num_decode] = arrays.parameters[:num_decode]
    words[:num_decode, BASE_WORD] = arrays.positions[:num_decode] + 1 - step
    for offset, row in enumerate(first, start=num_decode):
        words[offset] = row.parameters.words
        words[offset, BASE_WORD] = row.num_tokens - step
    return words
