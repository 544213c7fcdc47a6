"""The full tree under load: speed, latencies, CPU per token outside the gpu process, RSS, idle.

    python -m tools.bench_serve [--only speed,cpu,idle,start,peer]

speed  demo model, 64-token prompts, 64 tokens out, at 1, 4 and 16 closed-loop clients
peer   the same load through transformers' generate (padded batch), in this run
cpu    mock engine, 64-token prompts, 256 out, at 1 and 64 streams: CPU time of each process,
       per generated token
idle   demo tree without work: share of one core over 30 s; resident memory by role
start  spawn → ready of the demo model, weights in the page cache
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

import psutil

from hybridgen import AsyncClient, Client, SamplingParams
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import TreeHandle, start_tree

NUM_PROMPT_TOKENS = 64
NUM_OUT = 64
NUM_OUT_CPU = 256


def params(num_out: int) -> SamplingParams:
    """Sampled, and of a fixed length."""
    return SamplingParams(
        temperature=0.7, top_p=0.9, seed=1, max_tokens=num_out, min_tokens=num_out, ignore_eos=True
    )


def start(**options: object) -> TreeHandle:
    """A tree with ``options``."""
    return start_tree(config_from_options(options))


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Times:
    """Time stamps of finished streams."""

    def __init__(self) -> None:
        self.first_s: list[float] = []
        self.between_s: list[float] = []
        self.num_tokens = 0


async def one_stream(
    client: AsyncClient, ids: list[int], times: Times, num_out: int = NUM_OUT
) -> None:
    """One request; gaps are per token, a chunk of k tokens counts as k gaps."""
    asked_s = last_s = time.perf_counter()
    async with client.submit(ids, params(num_out)) as stream:
        async for chunk in stream:
            now_s = time.perf_counter()
            num_new = len(chunk.token_ids)
            if last_s == asked_s:
                times.first_s.append(now_s - asked_s)
            elif num_new:
                times.between_s.extend([(now_s - last_s) / num_new] * num_new)
            times.num_tokens += num_new
            last_s = now_s


async def closed_loop(
    uri: str, num_clients: int, num_rounds: int, vocab_size: int, num_out: int = NUM_OUT
) -> tuple[Times, float]:
    """``num_clients`` clients ask ``num_rounds`` times each, one request at a time."""
    times = Times()

    async def one_client(client: AsyncClient, number: int) -> None:
        for turn in range(num_rounds):
            first = number * 131 + turn * 17
            ids = [260 + (first + i * 7) % (vocab_size - 300) for i in range(NUM_PROMPT_TOKENS)]
            await one_stream(client, ids, times, num_out)

    async with AsyncClient(uri) as client:
        await one_stream(client, list(range(300, 364)), Times())  # warm-up
        started_s = time.perf_counter()
        await asyncio.gather(*(one_client(client, number) for number in range(num_clients)))
        return times, time.perf_counter() - started_s


def bench_speed() -> None:
    """Tokens/s, time to first token and inter-token latency of the demo model."""
    handle = start(model="demo")
    try:
        print("clients  tokens/s  prompt tokens/s  TTFT p50/p99 ms  inter-token p50/p99 ms")
        for num_clients, num_rounds in ((1, 4), (4, 3), (16, 3)):
            times, elapsed_s = asyncio.run(closed_loop(handle.uri, num_clients, num_rounds, 49_152))
            print(
                f"{num_clients:7d}  {times.num_tokens / elapsed_s:8.1f}"
                f"  {num_clients * num_rounds * NUM_PROMPT_TOKENS / elapsed_s:15.1f}"
                f"  {statistics.median(times.first_s) * 1e3:7.1f}/"
                f"{percentile(times.first_s, 0.99) * 1e3:7.1f}"
                f"  {statistics.median(times.between_s) * 1e3:10.2f}/"
                f"{percentile(times.between_s, 0.99) * 1e3:7.2f}"
            )
        print_memory(handle)
    finally:
        handle.stop()


def bench_peer() -> None:
    """Transformers' generate on the same weights and load, float32 (its fastest here)."""
    import torch

    from hybridgen.config import Config
    from hybridgen.formats.convert import load_weights, prepare_weights
    from hybridgen.formats.inspect import inspect_model
    from tools.llama_peer import llama_peer

    info = inspect_model("demo", Config())
    weights = load_weights(prepare_weights(info, "float32", ""))
    for dtype in (torch.float32, torch.bfloat16):
        model = llama_peer(info.config, weights, dtype)
        for num_clients in (1, 4, 16):
            ids = torch.randint(300, 40_000, (num_clients, NUM_PROMPT_TOKENS))
            started_s = time.perf_counter()
            with torch.inference_mode():
                model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    temperature=0.7,
                    top_p=0.9,
                    min_new_tokens=NUM_OUT,
                    max_new_tokens=NUM_OUT,
                    pad_token_id=0,
                )
            elapsed_s = time.perf_counter() - started_s
            rate = num_clients * NUM_OUT / elapsed_s
            print(f"transformers {dtype} {num_clients:2d} clients: {rate:.1f} tokens/s")


def cpu_by_role(handle: TreeHandle) -> dict[str, float]:
    """CPU seconds used so far, by process name."""
    with Client(handle.uri) as client:
        processes = client.ps().processes
    return {process.name: sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes}


def bench_cpu() -> None:
    """CPU per generated token outside the gpu process, sampling kernel apart."""
    handle = start(model="mock", mock_step_us=5000)
    try:
        for num_streams, num_rounds in ((1, 5), (64, 5)):
            before = cpu_by_role(handle)
            kernel_before_ns = sampling_ns(handle)
            own_before_s = sum(psutil.Process().cpu_times()[:2])
            times, _ = asyncio.run(
                closed_loop(handle.uri, num_streams, num_rounds, 512, NUM_OUT_CPU)
            )
            own_s = sum(psutil.Process().cpu_times()[:2]) - own_before_s
            kernel_us = (sampling_ns(handle) - kernel_before_ns) / 1e3
            after = cpu_by_role(handle)
            used = {name: after[name] - before[name] for name in after}
            per_token = {name: seconds * 1e6 / times.num_tokens for name, seconds in used.items()}
            outside = sum(us for name, us in per_token.items() if name != "gpu-0")
            kernel = kernel_us / times.num_tokens
            print(
                f"{num_streams} streams: {outside - kernel:.1f} µs CPU per token outside gpu and "
                f"sampling kernel ({kernel:.1f} µs); the client itself "
                f"{own_s * 1e6 / times.num_tokens:.1f} µs"
            )
            print("   ", ", ".join(f"{name} {us:.1f}" for name, us in per_token.items()))
    finally:
        handle.stop()


def sampling_ns(handle: TreeHandle) -> int:
    """Time spent in the sampling kernel so far, all samplers."""
    with Client(handle.uri) as client:
        return sum(p.counters.get("sampling_ns", 0) for p in client.ps().processes)


def bench_idle() -> None:
    """CPU of a tree without work over 30 s, and resident memory by role."""
    handle = start(model="demo")
    try:
        before = cpu_by_role(handle)
        time.sleep(30)
        after = cpu_by_role(handle)
        used = {name: (after[name] - before[name]) / 30 * 100 for name in after}
        print(f"idle: {sum(used.values()):.2f} % of one core", used)
        print_memory(handle)
    finally:
        handle.stop()


def print_memory(handle: TreeHandle) -> None:
    """Resident memory of every process."""
    with Client(handle.uri) as client:
        for process in client.ps().processes:
            print(f"    {process.name:16s} {process.rss_bytes / 2**20:8.1f} MiB")


def bench_start() -> None:
    """Start to ready, weights cached."""
    for _ in range(3):
        started_s = time.perf_counter()
        handle = start(model="demo")
        elapsed_s = time.perf_counter() - started_s
        handle.stop()
        print(f"start to ready: {elapsed_s:.2f} s")


BENCHES: dict[str, Callable[[], None]] = {
    "speed": bench_speed,
    "peer": bench_peer,
    "cpu": bench_cpu,
    "idle": bench_idle,
    "start": bench_start,
}


def main() -> None:
    """Run the chosen benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(BENCHES))
    for name in parser.parse_args().only.split(","):
        print(f"== {name}")
        BENCHES[name]()


if __name__ == "__main__":
    main()
