"""Buffers that a block of experts goes through, for the memory plan and for who allocates."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from hybridgen.models.config import Experts
from hybridgen.models.kernels.expert_choice import group_tile, max_tiles

#: Activations, float32, int32.
BufferKind = Literal["element", "float", "int"]


class Buffer(NamedTuple):
    """One buffer: its shape, and what it holds."""

    shape: tuple[int, ...]
    kind: BufferKind


def expert_buffers(experts: Experts, hidden_size: int, max_rows: int) -> dict[str, Buffer]:
    """Name → buffer, for steps of up to ``max_rows`` tokens on one stream.

    Kernels hand on: the normed input, the router's logits, chosen experts and shares, the tables
    of ``kernels.expert_groups``, inner activations, one row for each choice, and the same of a
    shared expert.
    """
    count, num_chosen = experts.num_experts, experts.num_chosen
    num_choices = max_rows * num_chosen
    most_tiles = max(
        max_tiles(choices, count, group_tile(choices, count))
        for choices in range(num_chosen, num_choices + 1, num_chosen)
    )
    num_shared = max_rows if experts.shared_size else 0
    return {
        "normed": Buffer((max_rows, hidden_size), "element"),
        "logits": Buffer((max_rows, experts.num_router_rows), "float"),
        "chosen": Buffer((max_rows, num_chosen), "int"),
        "shares": Buffer((max_rows, num_chosen), "float"),
        "order": Buffer((num_choices,), "int"),
        "tiles": Buffer((most_tiles, 3), "int"),
        "num_tiles": Buffer((1,), "int"),
        "inner": Buffer((num_choices, experts.size), "element"),
        "rows": Buffer((num_choices, hidden_size), "float"),
        "shared_inner": Buffer((num_shared, experts.shared_size), "element"),
        "shared": Buffer((num_shared, hidden_size), "element"),
    }


def expert_buffer_bytes(
    experts: Experts, hidden_size: int, max_rows: int, element_bytes: int
) -> int:
    """What they take, in all."""
    return sum(
        math.prod(buffer.shape) * (element_bytes if buffer.kind == "element" else 4)
        for buffer in expert_buffers(experts, hidden_size, max_rows).values()
    )
