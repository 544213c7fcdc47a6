"""Times of kernels on a CUDA device, in graphs, and the device's own limits beside them."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import triton
import triton.language as tl

_BLOCK = 4096


def time_graph(launch: Callable[[int], None], num_launches: int, *, num_replays: int = 5) -> float:
    """Median microseconds of one launch, of ``num_launches`` in one CUDA graph.

    Args:
        launch: does the work; its argument counts 0, 1, … so that it can take turns on buffers.
        num_launches: of one graph.
        num_replays: whose median is taken, after one that is not counted.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch(0)  # compiles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(num_launches):
            launch(turn)
    times_us = []
    graph.replay()
    for _ in range(num_replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_us.append(begin.elapsed_time(end) * 1e3 / num_launches)
    return statistics.median(times_us)


@triton.jit
def _read_kernel(
    x: tl.tensor, out: tl.tensor, num_blocks: tl.tensor, block_size: tl.constexpr
) -> None:
    total = tl.zeros([block_size], tl.int32)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        start = x + block.to(tl.int64) * (4 * block_size)
        k = tl.arange(0, block_size)
        first = tl.load(start + k)
        second = tl.load(start + block_size + k)
        third = tl.load(start + 2 * block_size + k)
        fourth = tl.load(start + 3 * block_size + k)
        total += first ^ second ^ third ^ fourth
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


class ReadMeter:
    """What the device can read in a second; it changes with the state of the card.

    Args:
        num_bytes: of the memory that is taken and read, far more than the caches hold.
    """

    def __init__(self, num_bytes: int = 8 << 30) -> None:
        self._num_bytes = num_bytes
        words = num_bytes // 4
        self._x = torch.randint(-(1 << 30), 1 << 30, (words,), dtype=torch.int32, device="cuda")
        self._out = torch.empty(132 * 8, dtype=torch.int32, device="cuda")

    def bandwidth(self) -> float:
        """Bytes per second of a kernel that only reads."""
        best_us = min(
            time_graph(lambda _, p=programs, w=warps: self._read(p, w), 3)
            for programs in (132 * 2, 132 * 4, 132 * 8)
            for warps in (8, 16)
        )
        return self._num_bytes / best_us * 1e6

    def _read(self, num_programs: int, num_warps: int) -> None:
        num_blocks = self._x.numel() // (4 * _BLOCK)
        _read_kernel[(num_programs,)](
            self._x, self._out, num_blocks, block_size=_BLOCK, num_warps=num_warps
        )


def read_bandwidth(num_bytes: int = 8 << 30) -> float:
    """Bytes per second of a kernel that only reads, now."""
    return ReadMeter(num_bytes).bandwidth()


def product_rate(size: int = 8192) -> float:
    """Floating-point operations per second of a large bf16 product, random data."""
    a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / time_graph(lambda _: torch.mm(a, b, out=out), 5) * 1e6
