"""Rows to cut and choose from, what must come out, and a record as it lies in memory.

The oracle computes in float32 and float64 as sampling/row.h defines, by sorting whole rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from hybridgen.models.kernels.choose import choose_rows
from hybridgen.models.kernels.cut import CutWorkspace, cut_rows
from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, parameters
from hybridgen.sampling.rng import uniform
from hybridgen.scheduler.row_parameters import BASE_WORD, read_parameters

HEAD = np.dtype(
    [("state", "u4"), ("count", "u4"), ("token_id", "i4"), ("top", "f4"), ("threshold", "f4"),
     ("scale", "f4"), ("total", "f8"), ("step", "u8"), ("urgent", "u8"), ("reserved", "u8", 2)]
)  # fmt: skip
POLYNOMIAL = [
    float.fromhex(text)
    for text in ("0x1.5bba14p-10", "0x1.3cea88p-7", "0x1.c6b752p-5", "0x1.ebf9bcp-3",
                 "0x1.62e42ap-1", "1.0")
]  # fmt: skip


class Row(NamedTuple):
    logits: np.ndarray
    params: SamplingParams
    position: int = 0


class Cut(NamedTuple):
    """A record, taken apart."""

    state: int
    token_id: int
    top: float
    threshold: float
    scale: np.float32
    total: float
    step: int
    values: np.ndarray
    ids: np.ndarray


def weights_of(logits: np.ndarray, top: np.float32, scale: np.float32) -> np.ndarray:
    """float32, one rounding per operation."""
    one = np.float32
    y = np.maximum((logits - top) * scale, one(-127))
    shifted = y + one(12582912.0)
    f = y - (shifted - one(12582912.0))
    p = np.full_like(f, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        p = p * f + one(coefficient)
    p = (p.view(np.int32) + (shifted.view(np.int32) << 23)).view(np.float32)
    return np.where(p < one(2.0**-11), (p + one(2.0**-11)) - one(2.0**-11), p)


def scale_of(params: SamplingParams) -> np.float32:
    temperature = float(np.float32(params.temperature))
    is_greedy = np.float32(params.temperature) < np.float32(1e-5)
    return np.float32(0.0 if is_greedy else 1.4426950408889634 / temperature)


@np.errstate(all="ignore")
def chosen(row: Row) -> int | None:
    """The token, by sorting the row; None if the row is not valid."""
    z, params = row.logits, row.params
    if np.isnan(z).any() or not np.isfinite(z.max()):
        return None
    scale = scale_of(params)
    if scale == 0:
        return int(np.argmax(z))
    weights = weights_of(z, z.max(), scale)
    order = np.argsort(-z, kind="stable")[: np.count_nonzero(np.isfinite(z))]
    if 0 < params.top_k < len(z):
        order = order[: params.top_k]
    sums = np.cumsum(weights[order].astype(np.float64))
    if params.top_p < 1:
        limit = float(np.float32(params.top_p)) * sums[-1]
        order = order[: np.searchsorted(sums, limit) + 1]
    kept = np.sort(order[weights[order] >= np.float32(params.min_p)])
    running = np.cumsum(weights[kept].astype(np.float64))
    target = uniform(params.seed or 0, row.position) * running[-1]
    return int(kept[np.searchsorted(running, target, side="right")])


def chosen_by_sampler(row: Row) -> int | None:
    record = bytearray(parameters.SAMPLING_BYTES)
    parameters.pack(row.params, [], row.params.seed or 0, memoryview(record))
    history = np.zeros(row.position, np.int32)
    token_id, error, _, _ = _native.sample_row(row.logits, record, history, 0)
    return None if error else token_id


class Batch:
    """Rows side by side, and the memory that a device would have for them."""

    def __init__(
        self, rows: list[Row], capacity: int = 64, step: int = 7, device: str = "cpu"
    ) -> None:
        self.step, self.vocab, self.capacity = step, len(rows[0].logits), capacity
        width = -(-self.vocab // 16) * 16 + 16
        padded = np.full((len(rows), width), 1e30, np.float32)  # what lies there must not matter
        words = []
        for index, row in enumerate(rows):
            padded[index, : self.vocab] = row.logits
            record = bytearray(parameters.SAMPLING_BYTES)
            parameters.pack(row.params, [], row.params.seed or 0, memoryview(record))
            words.append(read_parameters(memoryview(record), 0).words.copy())
            words[-1][BASE_WORD] = row.position - step
        self.logits = torch.from_numpy(padded).to(device)[:, : self.vocab]
        self.params = torch.from_numpy(np.stack(words)).to(device)
        self.workspace = CutWorkspace(len(rows) + 1, self.vocab, capacity, device)
        self.results = torch.full((len(rows), 4), -5, dtype=torch.int32, device=device)
        shape = (len(rows), self.workspace.cut_bytes)
        self.records = torch.full(shape, 0x5A, dtype=torch.uint8, device=device)

    @np.errstate(all="ignore")
    def cut(self, *, is_choosing: bool = False) -> None:
        cut_rows(
            self.logits, self.params, self.step, self.records.data_ptr(), self.workspace,
            is_choosing=is_choosing,
        )  # fmt: skip

    @np.errstate(all="ignore")
    def choose(self) -> list[int]:
        """Cut and choose; the results."""
        self.cut(is_choosing=True)
        choose_rows(
            self.logits, self.params, self.step, self.records.data_ptr(), self.results,
            self.workspace,
        )  # fmt: skip
        assert not self.workspace.counters.any()
        return self.results[:, 0].tolist()

    def record(self, index: int) -> Cut:
        raw = self.records[index].cpu().numpy()
        head = raw[:64].view(HEAD)[0]
        values = raw[64 : 64 + 4 * self.capacity].view(np.float32)
        ids = raw[64 + 4 * self.capacity :].view(np.int32)
        count = int(head["count"])
        return Cut(
            int(head["state"]), int(head["token_id"]), head["top"], head["threshold"],
            head["scale"], float(head["total"]), int(head["step"]), values[:count], ids[:count],
        )  # fmt: skip


def random_logits(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """One of the shapes that a row can have, nasty ones among them."""
    logits = rng.normal(0, rng.choice([0.01, 1, 3, 10]), vocab)
    kind = rng.integers(12)
    if kind == 0:
        logits = np.full(vocab, rng.normal())
    elif kind == 1:
        logits = np.full(vocab, -np.inf)
        logits[rng.integers(vocab)] = rng.normal()
    elif kind == 2:
        logits = np.round(logits)
    elif kind == 3:
        logits[rng.random(vocab) < rng.random()] = -np.inf
    elif kind == 4:
        logits = logits * 10.0 ** rng.integers(-44, 37)
    elif kind == 5:
        logits[rng.integers(vocab, size=3)] = [3e38, -3e38, 3e38]
    elif kind == 6:
        logits = np.where(rng.random(vocab) < 0.5, 0.0, -0.0)
    elif kind == 7:
        logits = np.sort(logits)[:: rng.choice([-1, 1])].copy()
    elif kind == 8:
        logits[rng.integers(vocab, size=max(1, vocab // 50))] += 12
    elif kind == 9:
        logits[rng.integers(vocab)] = rng.choice([np.nan, np.inf])
    return logits.astype(np.float32)


def random_params(rng: np.random.Generator, vocab: int) -> SamplingParams:
    """Each parameter off half of the time."""

    def pick(off: float, *choices: float) -> float:
        return off if rng.random() < 0.5 else choices[rng.integers(len(choices))]

    return SamplingParams(
        temperature=pick(float(rng.uniform(0.05, 2)), 0.0, 1e-3, 0.7, 1.0, 100.0),
        top_k=int(pick(0, -1, 1, 2, 50, int(rng.integers(1, 2 * vocab)), vocab)),
        top_p=pick(1.0, 0.9, 0.5, 1e-6, 0.999999, float(rng.uniform(0.01, 1))),
        min_p=pick(0.0, 0.05, 1.0, 1e-9, float(rng.uniform(0, 1))),
        seed=int(rng.integers(0, 2**63)) * 2 + 1,
    )


def random_row(rng: np.random.Generator, vocab: int) -> Row:
    return Row(random_logits(rng, vocab), random_params(rng, vocab), int(rng.integers(0, 5000)))
