"""Kill processes of a tree under load: how long streams stand, and whether their texts are right.

    python -m tools.bench_recovery [--model 13b] [--streams 32] [--role gpu] [--kills 3]
    python -m tools.bench_recovery --streams 64 --role gpu sampler --kills 5 20 --compare
    python -m tools.bench_recovery --model mock --streams 8 --kills 20 --role sampler --out 9000

Every stream must go on to its full length. Prints, per kill, the time from the kill to the next
token of any stream and of the last one, and the device memory in use before and after; then, for
each role, the longest time without a token around a kill, of the stream that stood longest.

With ``--compare`` streams are greedy, run without kills first, and every text is compared with that
run's (``text_check``).
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

import msgspec

from hybridgen import AsyncClient, SamplingParams
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree
from tools.bench_device import CONFIGS
from tools.text_check import check_texts

#: Streams that stand longer than this will not go on.
STANDS_S = 120.0
#: What was on its way when a process was killed has come to its client after this.
ON_ITS_WAY_S = 0.05
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.7, top_p=0.9)


class Streams:
    """So many requests at once, and what each of them did last.

    Args:
        options: of the command line.
        params: how tokens are chosen.
    """

    def __init__(self, options: argparse.Namespace, params: SamplingParams) -> None:
        count = options.streams
        self._options = options
        self._params = params
        self.prompts = [
            [(number * 131 + i * 7) % 200 for i in range(options.prompt)] for number in range(count)
        ]
        self.texts: list[list[int]] = [[] for _ in range(count)]
        self.last_s = [0.0] * count
        self.longest_s = [0.0] * count  # between two tokens, since it was set to 0

    async def run(self, client: AsyncClient) -> None:
        """All of them, to their ends."""
        await asyncio.gather(*(self._one(client, number) for number in range(len(self.prompts))))

    async def _one(self, client: AsyncClient, number: int) -> None:
        params = msgspec.structs.replace(
            self._params, max_tokens=self._options.out, ignore_eos=True, seed=number
        )
        async with client.submit(self.prompts[number], params) as stream:
            async for chunk in stream:
                now_s, last_s = time.perf_counter(), self.last_s[number]
                if last_s:
                    self.longest_s[number] = max(self.longest_s[number], now_s - last_s)
                self.last_s[number] = now_s
                self.texts[number].extend(chunk.token_ids)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each so far."""
        return [len(text) for text in self.texts]

    @property
    def running(self) -> list[int]:
        """Those that are not at their ends."""
        return [n for n, length in enumerate(self.lengths) if length < self._options.out]


class Killer:
    """Kills while streams run, and prints what it saw.

    Args:
        client: of the tree.
        streams: its load.
        has_device: whether there is device memory to look at.
    """

    def __init__(self, client: AsyncClient, streams: Streams, *, has_device: bool) -> None:
        self._client = client
        self._streams = streams
        self._has_device = has_device
        self.places: list[list[int]] = []
        """For each kill, the length of every stream at that time."""

    async def kill(self, role: str) -> float:
        """Kill one process of the role; the longest that a stream stood then, in seconds."""
        streams = self._streams
        before_mib = self._used_mib()
        listing = await self._client.ps()
        victim = next(p for p in listing.processes if p.role == role)
        streams.longest_s = [0.0] * len(streams.last_s)
        self.places.append(streams.lengths)
        os.kill(victim.pid, signal.SIGKILL)
        killed_s = time.perf_counter()
        after_s = killed_s + ON_ITS_WAY_S
        await _until(lambda: max(streams.last_s) > after_s or not streams.running)
        first_s = max(streams.last_s) - killed_s
        await _until(lambda: all(streams.last_s[n] > after_s for n in streams.running))
        last_s = min((streams.last_s[n] for n in streams.running), default=killed_s) - killed_s
        print(
            f"{victim.name} killed: the first stream went on after {first_s:.2f} s, the last "
            f"after {last_s:.2f} s; device memory {before_mib} → {self._used_mib()} MiB",
            flush=True,
        )
        return max(streams.longest_s)

    def _used_mib(self) -> int:
        return used_mib() if self._has_device else 0


async def run(uri: str, options: argparse.Namespace) -> bool:
    """Load, kills, figures; whether every stream came to its end, with the right text."""
    params = GREEDY if options.compare else SEEDED
    calm, streams = Streams(options, params), Streams(options, params)
    async with AsyncClient(uri) as client:
        if options.compare:
            await calm.run(client)
            print(f"{options.streams} streams of {options.out} tokens without a kill", flush=True)
        killer = Killer(client, streams, has_device=options.model != "mock")
        load = asyncio.create_task(streams.run(client))
        await _until(lambda: min(streams.lengths) > 0)
        num_left = 0
        for role, num_kills in zip(options.role, options.kills, strict=True):
            num_left += await kill_all(killer, streams, role, num_kills, options.every_s)
        await load
        is_whole = streams.lengths == [options.out] * options.streams
        print("every stream came to its end" if is_whole else "STREAMS LOST TOKENS", flush=True)
        is_right = not options.compare or await check_texts(
            client, streams.prompts, streams.texts, calm.texts, killer.places
        )
    if num_left:
        print(f"{num_left} KILLS LEFT: the streams ended before, raise --out", flush=True)
    return is_whole and is_right and not num_left


async def kill_all(
    killer: Killer, streams: Streams, role: str, num_kills: int, every_s: float
) -> int:
    """Kill so often, print how long streams stood; kills that the streams were too short for."""
    stands_s: list[float] = []
    while len(stands_s) < num_kills:
        await asyncio.sleep(every_s)
        if not streams.running:
            break
        stands_s.append(await killer.kill(role))
    if stands_s:
        print(
            f"{role}: streams stood {statistics.median(stands_s) * 1000:.0f} ms p50, "
            f"{max(stands_s) * 1000:.0f} ms at most, over {len(stands_s)} kills",
            flush=True,
        )
    return num_kills - len(stands_s)


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
    limits = {"pool_restart_limit": 1000, "gpu_restart_limit": 1000}
    common = {
        "max_num_seqs": options.streams,
        "backlog_limit": 4096,
        # A text that is looked at must not meet its own KV blocks again.
        "enable_prefix_caching": not options.compare,
        **limits,
    }
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
        return 0 if asyncio.run(run(handle.uri, options)) else 1
    finally:
        handle.stop()


def _parse() -> argparse.Namespace:
    roles = ["gpu", "sampler", "detokenizer"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="13b", choices=["13b", "8b", "mock"])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--out", type=int, default=3000)
    parser.add_argument("--role", nargs="+", default=["gpu"], choices=roles)
    parser.add_argument("--kills", nargs="+", type=int, default=[3], help="one for each role")
    parser.add_argument("--every-s", type=float, default=1.0, help="pause before each kill")
    parser.add_argument("--compare", action="store_true", help="with a run without kills")
    options = parser.parse_args()
    if len(options.kills) != len(options.role):
        parser.error("--kills takes one number for each --role")
    return options


if __name__ == "__main__":
    sys.exit(main())
