"""The full tree on a CUDA device under load, with a model of random weights.

    python -m tools.bench_device [--model 8b] [--streams 64] [--requests 256]

All requests at once (``--streams`` 0), or so many closed-loop streams. Prints output tokens per
second, time to first token and inter-token latency.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

from hybridgen import AsyncClient, SamplingParams
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree
from tools.bench_serve import Times, percentile

CONFIGS = Path(__file__).parent / "configs"


async def run_load(uri: str, options: argparse.Namespace) -> tuple[Times, float]:
    """All requests; the seconds that they took together."""
    times = Times()
    params = SamplingParams(
        temperature=0.7,
        top_p=0.9,
        max_tokens=options.out,
        ignore_eos=True,
    )
    gate = asyncio.Semaphore(options.streams or options.requests)

    async def one(client: AsyncClient, number: int) -> None:
        ids = [(number * 131 + i * 7) % 200 for i in range(options.prompt)]
        async with gate:
            asked_s = last_s = time.perf_counter()
            async with client.submit(ids, params) as stream:
                async for chunk in stream:
                    now_s, num_new = time.perf_counter(), len(chunk.token_ids)
                    if last_s == asked_s:
                        times.first_s.append(now_s - asked_s)
                    elif num_new:
                        times.between_s.extend([(now_s - last_s) / num_new] * num_new)
                    times.num_tokens += num_new
                    last_s = now_s

    async with AsyncClient(uri) as client:
        await one(client, 0)  # warm-up
        times.first_s.clear()
        times.between_s.clear()
        times.num_tokens = 0
        started_s = time.perf_counter()
        await asyncio.gather(*(one(client, number) for number in range(options.requests)))
        return times, time.perf_counter() - started_s


def main() -> int:
    """Start a tree, load it, print."""
    options = _parse()
    started_s = time.perf_counter()
    handle = start_tree(
        config_from_options(
            {
                "model": str(CONFIGS / f"llama-{options.model}.json"),
                "load_format": "dummy",
                "device": "cuda",
                "max_num_seqs": options.rows,
                "max_model_len": 2048,
                "backlog_limit": 512,
                "num_samplers": options.samplers,
            }
        )
    )
    try:
        print(f"{options.model}: ready in {time.perf_counter() - started_s:.1f} s", flush=True)
        times, elapsed_s = asyncio.run(run_load(handle.uri, options))
        print(
            f"{options.requests} requests of {options.prompt} in / {options.out} out, "
            f"{options.streams or 'all'} at once: {times.num_tokens / elapsed_s:.0f} tokens/s, "
            f"TTFT p50/p99 {statistics.median(times.first_s) * 1e3:.0f}/"
            f"{percentile(times.first_s, 0.99) * 1e3:.0f} ms, inter-token p50/p99 "
            f"{statistics.median(times.between_s) * 1e3:.2f}/"
            f"{percentile(times.between_s, 0.99) * 1e3:.2f} ms",
            flush=True,
        )
    finally:
        handle.stop()
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="8b", choices=["13b", "8b"])
    parser.add_argument("--streams", type=int, default=0, help="closed loop; 0: all at once")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--out", type=int, default=128)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--samplers", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
