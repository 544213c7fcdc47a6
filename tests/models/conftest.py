from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hybridgen.models import _native
from hybridgen.models.compute_pool import ComputePool


def _variants() -> list[str]:
    found = []
    for name in ("avx512", "avx2", "baseline"):
        try:
            found.append(_native.select_kernels(name))
        except ValueError:
            continue
    _native.select_kernels(None)
    return found


@pytest.fixture(autouse=True)
def draws() -> None:
    """The same random numbers, whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(params=_variants())
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every kernel variant that this CPU can run."""
    yield _native.select_kernels(request.param)
    _native.select_kernels(None)


@pytest.fixture(params=[1, 2, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[ComputePool]:
    pool = ComputePool(request.param)
    yield pool
    pool.close()
