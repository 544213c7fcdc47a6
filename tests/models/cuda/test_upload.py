from __future__ import annotations

import os
import threading

import pytest
import torch

from hybridgen.models.cuda import upload
from hybridgen.models.cuda.upload import Uploader

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_larger_than_the_buffers_arrive_whole_and_cast(dtype, monkeypatch):
    monkeypatch.setattr(upload, "STAGE_BYTES", 1 << 12)
    monkeypatch.setattr(upload, "_MIN_SHARE_BYTES", 100)  # shares end within an element
    shares = []
    sources = [torch.randn(101, 77).to(dtype), torch.randn(5).to(dtype)]
    out = [torch.full(source.shape, torch.nan, dtype=torch.bfloat16) for source in sources]
    with Uploader(CPU, 101 * 77 + 5, shares.append) as uploader:
        for source, target in zip(sources, out, strict=True):
            uploader.copy(source, target)
    for source, target in zip(sources, out, strict=True):
        assert torch.equal(target, source.bfloat16())
    assert shares == [pytest.approx(101 * 77 / (101 * 77 + 5)), 1.0]


def test_threads_use_the_cpus_that_they_are_given_and_end(monkeypatch):
    own = os.sched_getaffinity(0)
    moved = []
    monkeypatch.setattr(upload.os, "sched_setaffinity", lambda _pid, cpus: moved.append(cpus))
    before = threading.active_count()
    with Uploader(CPU, 1, lambda _: None, cpus={0, 1, 2}) as uploader:
        assert uploader.num_threads == 3
        uploader.copy(torch.ones(1), torch.empty(1))
    assert moved == [{0, 1, 2}]
    assert os.sched_getaffinity(0) == own
    assert threading.active_count() == before


def test_cpus_that_are_refused_only_make_it_slower(monkeypatch, caplog):
    def refuse(_pid: int, _cpus: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(upload.os, "sched_setaffinity", refuse)
    out = torch.empty(3)
    with Uploader(CPU, 3, lambda _: None, cpus={0}) as uploader:
        uploader.copy(torch.arange(3.0), out)
    assert out.tolist() == [0.0, 1.0, 2.0]
    assert "may not use CPUs [0]" in caplog.text
