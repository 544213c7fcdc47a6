from __future__ import annotations

import numpy as np
import pytest

from hybridgen.errors import IpcError
from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.scheduler.batch_row import SAMPLED_DTYPE, check_results


def results(*rows: tuple[int, int]) -> np.ndarray:
    return np.array([(token_id, flags, 0.0, 0) for token_id, flags in rows], SAMPLED_DTYPE)


def test_rows_that_end_need_no_id() -> None:
    check_results(results((0, 0), (299, 0), (-1, RowFlag.FINISHED | RowFlag.NO_TOKEN)), 300)
    check_results(results((-1, RowFlag.STALE | RowFlag.FINISHED)), 300)


@pytest.mark.parametrize("token_id", [-1, 300, 2**31 - 1])
def test_an_id_that_the_next_step_would_read_memory_by_is_refused(token_id: int) -> None:
    with pytest.raises(IpcError, match="outside the vocabulary"):
        check_results(results((5, 0), (token_id, 0)), 300)
