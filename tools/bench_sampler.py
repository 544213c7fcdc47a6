"""Time of one sampled row: the native kernel, numpy by full sort, torch on one thread, llama.cpp.

    python -m tools.bench_sampler [--vocab 32000 128256 151936] [--seconds 1] [--quick]

Prints p50 and p99 in microseconds per row. "warm" repeats one row; "cold" walks through 64 MB or
more of rows, so that each comes from beyond the second-level cache, as rows fresh from a device
do. Logits look like a language model's: normal with a few likely tokens on top. The history of
1,000 tokens is drawn from the same distribution, so that its tokens are the likely ones. Runs on
one core.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridgen.request import SamplingParams
from hybridgen.sampling import _native, parameters, reference

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

COLD_BYTES = 64 << 20
HISTORY = 1000
PROMPT = 500
PENALTIES: dict[str, float] = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
}
FULL = SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=1, **PENALTIES)  # type: ignore[arg-type]
SETTINGS: dict[str, SamplingParams] = {
    "T 0.7, k 50, p 0.9, penalties": FULL,
    "T 0.7, k 50, p 0.9": SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=1),
    "T 0.7, p 0.9": SamplingParams(temperature=0.7, top_p=0.9, seed=1),
    "T 0.7, p 0.9, penalties": SamplingParams(temperature=0.7, top_p=0.9, seed=1, **PENALTIES),  # type: ignore[arg-type]
    "T 1.5, p 0.99": SamplingParams(temperature=1.5, top_p=0.99, seed=1),
    "T 0.7, min_p 0.05": SamplingParams(temperature=0.7, min_p=0.05, seed=1),
    "T 0.7": SamplingParams(temperature=0.7, seed=1),
    "greedy": SamplingParams(temperature=0.0, seed=1),
    "greedy, penalties": SamplingParams(temperature=0.0, seed=1, **PENALTIES),  # type: ignore[arg-type]
    "greedy, logprobs 20": SamplingParams(temperature=0.0, logprobs=20, seed=1),
    "T 0.7, k 32000": SamplingParams(temperature=0.7, top_k=32000, seed=1),
}


def make_rows(vocab_size: int, num_rows: int) -> Floats:
    """Rows like a language model's, shape (num_rows, vocab_size)."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((num_rows, vocab_size), np.float32) * np.float32(2.5)
    for row in rows:
        row[rng.integers(vocab_size, size=40)] += rng.uniform(5, 14, 40).astype(np.float32)
    return rows


def make_history(row: Floats) -> Ints:
    """A history of likely tokens: half from the row's head, half from all of it."""
    rng = np.random.default_rng(8)
    likely = np.argsort(-row)[:200]
    head, anywhere = rng.choice(likely, HISTORY // 2), rng.integers(len(row), size=HISTORY // 2)
    return rng.permutation(np.concatenate([head, anywhere])).astype(np.int32)


def measure(call: Callable[[int], object], seconds: float) -> tuple[float, float, int]:
    """p50 and p99 in microseconds, and the number of calls; ``call`` gets a running number."""
    call(0)
    times_ns: list[int] = []
    stop_ns = time.perf_counter_ns() + int(seconds * 1e9)
    now_ns = time.perf_counter_ns()
    while now_ns < stop_ns or len(times_ns) < 5:
        call(len(times_ns))
        end_ns = time.perf_counter_ns()
        times_ns.append(end_ns - now_ns)
        now_ns = end_ns
    p50, p99 = np.percentile(np.asarray(times_ns), [50, 99]) / 1e3
    return float(p50), float(p99), len(times_ns)


def show(what: str, name: str, timing: tuple[float, float, int]) -> None:
    """One line of the table."""
    p50, p99, num_calls = timing
    print(f"  {what:<32} {name:<14} {p50:>9.1f} {p99:>9.1f} {num_calls:>8}", flush=True)


def packed(params: SamplingParams) -> bytes:
    """The parameters as the kernel reads them."""
    record = bytearray(parameters.SAMPLING_BYTES)
    parameters.pack(params, (2,), params.seed or 0, memoryview(record))
    return bytes(record)


def bench_native(rows: Floats, history: Ints, seconds: float, variant: int) -> None:
    """Every setting, warm and cold, with one variant of the kernel."""
    name = _native.variants()[variant]
    views = [memoryview(row) for row in rows]
    for what, params in SETTINGS.items():
        record = packed(params)

        def warm(_: int, record: bytes = record) -> object:
            return _native.sample_row(views[0], record, history, PROMPT, variant)

        def cold(turn: int, record: bytes = record) -> object:
            view = views[turn % len(views)]
            return _native.sample_row(view, record, history, PROMPT, variant)

        show(what, f"{name} warm", measure(warm, seconds))
        if variant == 0:
            show(what, f"{name} cold", measure(cold, seconds))


def bench_numpy(row: Floats, history: Ints, seconds: float) -> None:
    """The oracle, which sorts."""
    ids = history.tolist()

    def call(_: int) -> object:
        return reference.sample(row, FULL, (2,), ids, PROMPT)

    show("T 0.7, k 50, p 0.9, penalties", "numpy sort", measure(call, seconds))


def torch_sampler(row: Floats, history: Ints, *, top_k: int) -> Callable[[int], object]:
    """The usual way in torch: penalties by scatter, top_k, then top_p by sorting."""
    import torch

    torch.set_num_threads(1)
    logits = torch.from_numpy(row.copy())
    ids = torch.from_numpy(history.astype(np.int64))
    generator = torch.Generator().manual_seed(1)

    def call(_: int) -> object:
        z = logits.clone()
        seen = torch.unique(ids)
        z[seen] = torch.where(z[seen] > 0, z[seen] / 1.1, z[seen] * 1.1)
        counts = torch.bincount(ids[PROMPT:], minlength=len(z))
        z -= 0.1 * counts + 0.1 * (counts > 0)
        z /= 0.7
        if top_k:
            z[z < torch.topk(z, top_k).values[-1]] = -torch.inf
        ordered, order = torch.sort(z, descending=True)
        weights = torch.softmax(ordered, 0)
        weights[weights.cumsum(0) - weights > 0.9] = 0
        return order[torch.multinomial(weights, 1, generator=generator)].item()

    return call


def bench_torch(row: Floats, history: Ints, seconds: float) -> None:
    """Torch on one thread."""
    if importlib.util.find_spec("torch") is None:
        print("  torch: not installed, left out")
        return
    for what, top_k in (("T 0.7, k 50, p 0.9, penalties", 50), ("T 0.7, p 0.9, penalties", 0)):
        show(what, "torch", measure(torch_sampler(row, history, top_k=top_k), seconds))


def llama_chain(llama: Any, vocab_size: int, history: Ints) -> Any:
    """llama.cpp's chain for the same settings, its penalties fed with the history."""
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    for sampler in (
        llama.llama_sampler_init_penalties(vocab_size, HISTORY, 1.1, 0.1, 0.1),
        llama.llama_sampler_init_top_k(50),
        llama.llama_sampler_init_top_p(0.9, 1),
        llama.llama_sampler_init_temp(0.7),
        llama.llama_sampler_init_dist(1),
    ):
        llama.llama_sampler_chain_add(chain, sampler)
    for token_id in history:
        llama.llama_sampler_accept(chain, int(token_id))
    return chain


def bench_llama_cpp(row: Floats, history: Ints, seconds: float) -> None:
    """llama-cpp-python's chain, with the candidate array filled anew for every row, as it must."""
    if importlib.util.find_spec("llama_cpp") is None:
        print("  llama-cpp-python: not installed, left out")
        return
    import ctypes

    import llama_cpp as llama

    chain = llama_chain(llama, len(row), history)
    item = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    data = np.zeros(len(row), item)
    array = llama.llama_token_data_array(
        data=data.ctypes.data_as(ctypes.POINTER(llama.llama_token_data)),
        size=len(row),
        selected=-1,
        sorted=False,
    )
    ids = np.arange(len(row), dtype=np.int32)

    def call(_: int) -> object:
        data["id"], data["logit"] = ids, row
        array.size, array.selected, array.sorted = len(row), -1, False
        llama.llama_sampler_apply(chain, ctypes.byref(array))
        return array.selected

    show("T 0.7, k 50, p 0.9, penalties", "llama.cpp", measure(call, seconds))
    llama.llama_sampler_free(chain)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocab", type=int, nargs="+", default=[32000, 128256, 151936])
    parser.add_argument("--seconds", type=float, default=0.3, help="per line")
    parser.add_argument("--all-variants", action="store_true", help="slower instruction sets too")
    parser.add_argument("--quick", action="store_true", help="the native kernel only")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"  {'setting':<32} {'what':<14} {'p50 µs':>9} {'p99 µs':>9} {'rows':>8}")
    for vocab_size in options.vocab:
        rows = make_rows(vocab_size, COLD_BYTES // (4 * vocab_size) + 1)
        history = make_history(rows[0])
        print(f"vocabulary {vocab_size}")
        for variant in range(len(_native.variants()) if options.all_variants else 1):
            bench_native(rows, history, options.seconds, variant)
        if options.quick:
            continue
        bench_numpy(rows[0], history, options.seconds)
        bench_torch(rows[0], history, options.seconds)
        bench_llama_cpp(rows[0], history, options.seconds)


if __name__ == "__main__":
    main()
