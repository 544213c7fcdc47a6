"""Cosines and sines of all positions on the device: one table, or one more for windowed layers."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hybridgen.models.config import ModelConfig
from hybridgen.models.rope import RopeTable, build_rope_table

Rope = tuple[torch.Tensor, torch.Tensor]


class RopeTables(NamedTuple):
    """Cosines and sines, float32[num_positions, rotary_size / 2] each.

    Attributes:
        whole: of layers that see everything.
        local: of layers with ``is_local``; ``whole`` itself where the model has none.
    """

    whole: Rope
    local: Rope

    def of(self, *, is_local: bool) -> Rope:
        """The table that a layer rotates with."""
        return self.local if is_local else self.whole

    @property
    def num_positions(self) -> int:
        """The context that it is for."""
        return len(self.whole[0])


def rope_tables(config: ModelConfig, num_positions: int, device: torch.device) -> RopeTables:
    """The tables of a model on ``device``."""

    def on_device(table: RopeTable) -> Rope:
        return torch.from_numpy(table.cosines).to(device), torch.from_numpy(table.sines).to(device)

    whole = on_device(build_rope_table(config, num_positions))
    if not any(config.has_local_rope(layer) for layer in range(config.num_layers)):
        return RopeTables(whole, whole)
    return RopeTables(whole, on_device(build_rope_table(config, num_positions, is_local=True)))
