"""Kill a process of a tree under load, and see how long streams stand.

    python -m tools.bench_recovery [--model 13b] [--streams 32] [--kills 3] [--role gpu]
    python -m tools.bench_recovery --model mock --streams 8 --kills 20 --role sampler --out 9000

Every stream must go on to its full length. Prints, per kill, the time from the kill to the next
token of any stream and of the last one, and the device memory in use before and after; in the end
the longest time without a token around a kill, of the stream that stood longest, over all kills.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from hybridgen import AsyncClient, SamplingParams
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree
from tools.bench_device import CONFIGS

#: Streams that stand longer than this will not go on.
STANDS_S = 120.0


class Streams:
    """What each stream did last."""

    def __init__(self, count: int) -> None:
        self.last_s = [0.0] * count
        self.longest_s = [0.0] * count  # between two tokens, since it was set to 0
        self.num_tokens = [0] * count

    async def run(self, client: AsyncClient, number: int, num_tokens: int) -> None:
        """One request to its end."""
        ids = [(number * 131 + i * 7) % 200 for i in range(512)]
        params = SamplingParams(
            temperature=0.7, top_p=0.9, max_tokens=num_tokens, ignore_eos=True, seed=number
        )
        async with client.submit(ids, params) as stream:
            async for chunk in stream:
                now_s, last_s = time.perf_counter(), self.last_s[number]
                if last_s:
                    self.longest_s[number] = max(self.longest_s[number], now_s - last_s)
                self.last_s[number] = now_s
                self.num_tokens[number] += len(chunk.token_ids)


async def run(uri: str, options: argparse.Namespace) -> bool:
    """Load, kills, figures; whether every stream came to its end."""
    streams = Streams(options.streams)
    stands_s = []
    async with AsyncClient(uri) as client:
        tasks = [
            asyncio.create_task(streams.run(client, number, options.out))
            for number in range(options.streams)
        ]
        await _until(lambda: min(streams.num_tokens) > 0)
        for _ in range(options.kills):
            await asyncio.sleep(1.0)
            before = used_mib() if options.model != "mock" else 0
            listing = await client.ps()
            victim = next(p for p in listing.processes if p.role == options.role)
            streams.longest_s = [0.0] * options.streams
            os.kill(victim.pid, signal.SIGKILL)
            killed_s = time.perf_counter()
            await _until(lambda at=killed_s: max(streams.last_s) > at + 0.05)
            first_s = max(streams.last_s) - killed_s
            await _until(lambda at=killed_s: min(streams.last_s) > at + 0.05)
            last_s = min(streams.last_s) - killed_s
            stands_s.append(max(streams.longest_s))
            after = used_mib() if options.model != "mock" else 0
            print(
                f"{victim.name} killed: the first stream went on after {first_s:.2f} s, the last "
                f"after {last_s:.2f} s; device memory {before} → {after} MiB",
                flush=True,
            )
        await asyncio.gather(*tasks)
    print(
        f"streams stood {statistics.median(stands_s) * 1000:.0f} ms p50, "
        f"{max(stands_s) * 1000:.0f} ms at most, over {len(stands_s)} kills",
        flush=True,
    )
    return streams.num_tokens == [options.out] * options.streams


async def _until(is_so: Callable[[], bool]) -> None:
    limit_s = time.perf_counter() + STANDS_S
    while not is_so():
        if time.perf_counter() > limit_s:
            raise SystemExit("streams stand still")
        await asyncio.sleep(0.005)


def used_mib() -> int:
    """Device memory in use, by all processes."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def tree_options(options: argparse.Namespace) -> dict[str, object]:
    """Of a model on the device, or of the mock model where there is none."""
    common = {"max_num_seqs": options.streams, "pool_restart_limit": 1000}
    if options.model == "mock":
        mock = {"mock_step_us": 4000, "mock_max_model_len": 32_768, "num_kv_blocks": 1 << 15}
        return {"model": "mock", "num_samplers": 1, **mock, **common}
    return {
        "model": str(CONFIGS / f"llama-{options.model}.json"),
        "load_format": "dummy",
        "device": "cuda",
        "max_model_len": 8192,
        "num_samplers": 8,
        **common,
    }


def main() -> int:
    """Start a tree, kill, print."""
    options = _parse()
    handle = start_tree(config_from_options(tree_options(options)))
    try:
        is_whole = asyncio.run(run(handle.uri, options))
    finally:
        handle.stop()
    print("every stream came to its end" if is_whole else "STREAMS LOST TOKENS", flush=True)
    return 0 if is_whole else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="13b", choices=["13b", "8b", "mock"])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--out", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--role", default="gpu", choices=["gpu", "sampler", "detokenizer"])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
