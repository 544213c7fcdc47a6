"""The batch on the device: ids, positions and block tables that steps advance by themselves."""

from __future__ import annotations

import torch

from hybridgen.scheduler.device_row import StateLayout
from hybridgen.scheduler.row_parameters import PARAMETER_WORDS

#: int32 words of a struct hg_sampled (ipc/layout.h); the first is the token id.
RESULT_WORDS = 4


class BatchState:
    """The state vector of ``StateLayout``, and what the device itself chose in the step before.

    Args:
        layout: of the vector.
        scratch_block: where rows that are in no step may read and write.
        device: where.

    Attributes:
        results: int32[max_rows, 4], the device's own choices as records of hg_sampled.
        items: int32[num_items], the vector; ``positions`` and ``tables`` are views of it.
        positions: int32[max_rows], of the token to decode next; -1: idle.
        tables: int32[max_rows, width], KV blocks.
        ids: int32[max_rows], the tokens that the step decodes.
        parameters: int32[max_rows, 8], how to sample each row (``row_parameters``).
    """

    def __init__(self, layout: StateLayout, scratch_block: int, device: torch.device) -> None:
        self.layout = layout
        self.items = torch.full((layout.num_items,), scratch_block, dtype=torch.int32).to(device)
        self._rows = torch.arange(layout.max_rows, dtype=torch.int32, device=device)
        self.results = torch.zeros(layout.max_rows, RESULT_WORDS, dtype=torch.int32, device=device)
        self.positions = self.items[: layout.max_rows]
        self._origins = self.items[layout.origins : layout.tables]
        self.tables = self.items[layout.tables :].view(layout.max_rows, layout.width)
        self.ids = torch.zeros(layout.max_rows, dtype=torch.int32, device=device)
        self.parameters = torch.zeros(
            layout.max_rows, PARAMETER_WORDS, dtype=torch.int32, device=device
        )
        self.reset()

    def reset(self) -> None:
        """All rows idle."""
        self.positions.fill_(-1)
        self._origins.copy_(self._rows)

    def begin(self, num_rows: int, results_address: int = 0) -> None:
        """ids[i] = what was chosen for the row where i's token comes from.

        Args:
            num_rows: rows 0 … num_rows - 1.
            results_address: where the device finds the answers; 0: in ``results``.
        """
        origins = self._origins[:num_rows]
        if origins.is_cuda:
            from hybridgen.models.cuda.state_kernels import begin_rows  # noqa: PLC0415  triton

            address = results_address or self.results.data_ptr()
            begin_rows(origins, address, self.ids[:num_rows])
            return
        chosen = self.results[:, 0].index_select(0, origins.clamp(min=0))
        self.ids[:num_rows].copy_(torch.where(origins >= 0, chosen, -1 - origins))
        origins.copy_(self._rows[:num_rows])

    def advance(self, num_rows: int) -> None:
        """The next step is one position further, in rows that are not idle."""
        positions = self.positions[:num_rows]
        if positions.is_cuda:
            from hybridgen.models.cuda.state_kernels import advance_rows  # noqa: PLC0415  triton

            advance_rows(positions)
            return
        positions += (positions >= 0).to(torch.int32)
