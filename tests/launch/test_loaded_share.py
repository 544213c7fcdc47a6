from __future__ import annotations

from typing import NamedTuple

import pytest

from hybridgen.ipc.board import Role
from hybridgen.launch.loaded_share import loaded_share


class Process(NamedTuple):
    role: Role
    loaded: float


@pytest.mark.parametrize(
    ("gpu", "others", "share"),
    [(0.0, [0.0, 0.0], 0.0), (0.5, [0.0, 0.0], 0.45), (0.5, [1.0, 0.0], 0.5), (1.0, [1.0, 1.0], 1)],
)
def test_the_model_is_nearly_all_of_a_start(gpu: float, others: list[float], share: float) -> None:
    processes = [Process(Role.GPU, gpu), *(Process(Role.SAMPLER, one) for one in others)]
    assert loaded_share(processes) == pytest.approx(share)
