"""What a step does to the batch state: the kernels against the same in torch."""

from __future__ import annotations

import pytest
import torch

from hybridgen.models.cuda.batch_state import BatchState
from hybridgen.models.cuda.state_kernels import advance_rows, begin_rows
from hybridgen.scheduler.device_row import StateLayout


def random_state(max_rows: int) -> BatchState:
    generator = torch.Generator().manual_seed(max_rows)
    state = BatchState(StateLayout(max_rows, 3), 9, torch.device("cpu"))
    state.results.copy_(torch.randint(-1, 1000, state.results.shape, generator=generator))
    state.positions.copy_(torch.randint(-1, 4, (max_rows,), generator=generator))
    origins = torch.randint(-max_rows, max_rows, (max_rows,), generator=generator)
    state._origins.copy_(origins)
    return state


@pytest.mark.parametrize(("max_rows", "num_rows"), [(1, 1), (6, 5), (8, 8), (300, 256), (300, 290)])
def test_begin_and_advance_are_those_of_the_state(max_rows, num_rows):
    ours, theirs = random_state(max_rows), random_state(max_rows)
    begin_rows(ours._origins[:num_rows], ours.results, ours.ids[:num_rows])
    advance_rows(ours.positions[:num_rows])
    theirs.begin(num_rows)
    theirs.advance(num_rows)
    assert torch.equal(ours.ids, theirs.ids)
    assert torch.equal(ours.items, theirs.items)
