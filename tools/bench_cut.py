"""Microseconds of the cut of logits rows and of the choice of their tokens on a CUDA device.

Usage: python -m tools.bench_cut [--rows 1 8 64 256] [--vocabs 32000 128256] [--spread 2.5]

Needs a CUDA device. Normally distributed logits; records go to pinned host memory, as in the ring;
everything is timed in CUDA graphs. "floor" is the time to read the rows once.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from hybridgen.models.kernels.choose import choose_rows
from hybridgen.models.kernels.cut import CutWorkspace, cut_rows
from hybridgen.request import SamplingParams
from hybridgen.sampling import parameters
from hybridgen.scheduler.row_parameters import read_parameters
from tools.device_clock import read_bandwidth, time_graph

_CAPACITY = 512
_NUM_LAUNCHES = 20

#: Name → parameters. Sums decide temperature alone, candidates most rows of the others but two.
_MANNERS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(),
    "top_k 40": SamplingParams(top_k=40),
    "top_k 40, top_p 0.9": SamplingParams(top_k=40, top_p=0.9),
    "top_p 0.9 at 0.5": SamplingParams(temperature=0.5, top_p=0.9),
    "min_p 0.1": SamplingParams(min_p=0.1),
    "top_p 0.9 (searched)": SamplingParams(top_p=0.9, temperature=1.5),
    "top_k 2000 (searched)": SamplingParams(top_k=2000),
}


def main() -> int:
    """Measure and print."""
    options = _parse()
    bandwidth = read_bandwidth(1 << 30)
    print(f"{torch.cuda.get_device_name()}: read {bandwidth / 1e12:.2f} TB/s", flush=True)
    for vocab in options.vocabs:
        for num_rows in options.rows:
            bench = CutBench(num_rows, vocab, options.spread)
            floor_us = num_rows * vocab * 4 / bandwidth * 1e6
            print(f"{num_rows:3} rows x {vocab}, floor {floor_us:.1f} us", flush=True)
            for name, params in _MANNERS.items():
                bench.adopt(params)
                counts = bench.counts()
                recorded = time_graph(bench.cut_to_records, _NUM_LAUNCHES)
                cut = time_graph(bench.cut, _NUM_LAUNCHES)
                both = time_graph(bench.cut_and_choose, _NUM_LAUNCHES)
                print(
                    f"  {name:22} cut to host {recorded:6.1f}, cut {cut:6.1f}, choose "
                    f"{both - cut:6.1f} us, candidates {min(counts)} to {max(counts)}",
                    flush=True,
                )
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--vocabs", nargs="+", type=int, default=[32_000, 128_256])
    parser.add_argument("--spread", type=float, default=2.5, help="of the logits")
    return parser.parse_args()


class CutBench:
    """Rows on the device and their records on the host."""

    def __init__(self, num_rows: int, vocab: int, spread: float) -> None:
        self.logits = torch.randn(num_rows, vocab, device="cuda") * spread
        self.workspace = CutWorkspace(num_rows, vocab, _CAPACITY, "cuda")
        self.params = torch.zeros(num_rows, 8, dtype=torch.int32, device="cuda")
        self.results = torch.zeros(num_rows, 4, dtype=torch.int32, device="cuda")
        shape = (num_rows, self.workspace.cut_bytes)
        self.records = torch.zeros(shape, dtype=torch.uint8, pin_memory=True)

    def adopt(self, params: SamplingParams) -> None:
        """All rows get these parameters, each a seed of its own."""
        words = []
        for seed in range(len(self.params)):
            record = bytearray(parameters.SAMPLING_BYTES)
            parameters.pack(params, [], seed, memoryview(record))
            words.append(read_parameters(memoryview(record), 0).words)
        self.params.copy_(torch.from_numpy(np.stack(words)))

    def counts(self) -> list[int]:
        """Candidates of each row."""
        self.cut_to_records(0)
        torch.cuda.synchronize()
        return [int(count) for count in self.records.view(torch.int32)[:, 1]]

    def cut_to_records(self, _: int) -> None:
        """As for rows that samplers choose for."""
        self._cut(is_choosing=False)

    def cut(self, _: int) -> None:
        """As for rows that the device chooses for."""
        self._cut(is_choosing=True)

    def cut_and_choose(self, _: int) -> None:
        """The whole of it."""
        self._cut(is_choosing=True)
        choose_rows(
            self.logits, self.params, 1, self.records.data_ptr(), self.results, self.workspace
        )

    def _cut(self, *, is_choosing: bool) -> None:
        cut_rows(
            self.logits, self.params, 1, self.records.data_ptr(), self.workspace,
            is_choosing=is_choosing,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
