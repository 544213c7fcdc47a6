from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest
import torch

from hybridgen.models import _native
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.layers import PackedMatrix, linear
from tests.support.eventually import eventually


def num_os_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_threads_are_counted_with_the_caller_and_end_with_the_pool():
    before = num_os_threads()
    pool = ComputePool(4)
    assert pool.num_threads == 4
    assert num_os_threads() == before + 3
    pool.close()
    gc.collect()
    eventually(lambda: num_os_threads() == before)


def test_zero_threads_means_every_allowed_cpu():
    pool = ComputePool()
    assert pool.num_threads == len(os.sched_getaffinity(0))
    pool.close()


def test_an_idle_pool_uses_no_cpu():
    pool = ComputePool(3)
    matrix = PackedMatrix(pool, torch.ones(32, 16))
    linear(pool, torch.ones(1, 16), matrix, torch.empty(1, 32))
    tasks = [Path(f"/proc/self/task/{tid}/stat") for tid in os.listdir("/proc/self/task")]

    def sleeping() -> int:
        return sum(task.read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)

    eventually(lambda: sleeping() >= 2)
    pool.close()


def test_a_second_caller_is_refused_while_the_pool_works():
    pool = ComputePool(2)
    matrix = PackedMatrix(pool, torch.ones(1024, 512))
    x = torch.ones(64, 512)
    refused: list[str] = []

    def work() -> None:
        while not refused:
            try:
                assert bool((linear(pool, x, matrix, torch.empty(64, 1024)) == 512).all())
            except RuntimeError as error:
                refused.append(str(error))

    rivals = [threading.Thread(target=work) for _ in range(2)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert "in use" in refused[0]
    pool.close()


def test_many_short_tasks_each_see_all_of_the_previous_one():
    pool = ComputePool(3)
    matrix = PackedMatrix(pool, torch.eye(64))
    x = torch.randn(2, 64)
    for _ in range(2000):
        y = linear(pool, x, matrix, torch.empty(2, 64))
        assert torch.equal(x, y)
        x = y
    pool.close()


def test_a_closed_pool_is_refused():
    pool = ComputePool(2)
    pool.close()
    with pytest.raises(ValueError, match="PyCapsule"):
        PackedMatrix(pool, torch.ones(32, 16))


@pytest.mark.parametrize("num_threads", [0, -1, 5000])
def test_an_impossible_number_of_threads_is_refused(num_threads):
    with pytest.raises(ValueError, match="num_threads"):
        _native.create_pool(num_threads)
