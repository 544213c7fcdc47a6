"""How steady streams are while other processes want every CPU.

    python -m tools.bench_isolation [--model 8b] [--streams 64] [--out 256] [--hogs 0]
    python -m tools.bench_isolation --model mock --streams 8 --out 100 --hogs 2

For each way to place the tree's processes one tree is started, and runs its streams twice: with
nothing else on the machine, then beside ``--hogs`` processes that compute without end (0: two for
each CPU). Prints one line for each: the time between tokens, p50, p99 and the longest. The last CPU
is the client's own: neither the tree nor the processes beside it run there.

Behind its lines stand the CPUs and the groups that the tree was really given. A tree can make
groups only in one (v2) that holds nothing else: ``--group FOLDER`` is an empty one to start it in.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hybridgen import AsyncClient, Client, SamplingParams
from hybridgen.errors import ConfigError
from hybridgen.launch import tree
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.placement import format_cpus
from hybridgen.launch.tree import start_tree
from tools.bench_device import CONFIGS
from tools.bench_serve import percentile

#: Name → options of the tree.
PLACEMENTS: dict[str, dict[str, object]] = {
    "groups, weight 10000": {"cgroup": "true", "cgroup_cpu_weight": 10_000},
    "groups": {"cgroup": "true"},
    "affinity": {"cgroup": "false"},
    "nothing": {"cgroup": "false", "disable_cpu_affinity": True},
}
HOG = (sys.executable, "-c", "while True: pass")


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many processes that compute; they end here."""
    processes = [subprocess.Popen(HOG) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


async def gaps_of(uri: str, options: argparse.Namespace) -> list[float]:
    """Seconds between the tokens of every stream, its prompt apart."""
    gaps_s: list[float] = []
    params = SamplingParams(
        temperature=0.7, top_p=0.9, max_tokens=options.out, ignore_eos=True, seed=1
    )
    is_full = asyncio.Event()  # all streams have begun: no prompt is computed any more
    num_begun = 0

    async def one(client: AsyncClient, number: int) -> None:
        nonlocal num_begun
        ids = [(number * 131 + i * 7) % 200 for i in range(options.prompt)]
        last_s = 0.0
        async with client.submit(ids, params) as stream:
            async for chunk in stream:
                now_s, num_new = time.perf_counter(), len(chunk.token_ids)
                if not last_s:
                    num_begun += 1
                    if num_begun == options.streams:
                        is_full.set()
                elif is_full.is_set() and num_new:
                    gaps_s.extend([(now_s - last_s) / num_new] * num_new)
                last_s = now_s

    async with AsyncClient(uri) as client:
        await asyncio.gather(*(one(client, number) for number in range(options.streams)))
    return gaps_s


def enter(group: str) -> None:
    """Let trees be started by a shell that moves itself into the group first."""
    move = f'echo $$ > {shlex.quote(group)}/cgroup.procs && exec "$@"'
    tree.SERVE_COMMAND = ("/bin/sh", "-c", move, "sh", *tree.SERVE_COMMAND)


def measure(name: str, options: argparse.Namespace) -> None:
    """A tree placed in this way: its streams alone, then beside the hogs."""
    try:
        handle = start_tree(config_from_options({**tree_options(options), **PLACEMENTS[name]}))
    except ConfigError as error:
        print(f"{name:<22} not here: {error.message}; {error.fields.get('limit', '')}", flush=True)
        return
    try:
        with on(options.cpu):
            print_line(name, "alone", asyncio.run(gaps_of(handle.uri, options)))
        with hogs(options.hogs), on(options.cpu):
            gaps_s = asyncio.run(gaps_of(handle.uri, options))
        print_line(name, f"{options.hogs} hogs", gaps_s)
        print(f"{'':<22} {placement_of(handle.uri)}", flush=True)
    finally:
        handle.stop()


@contextmanager
def on(cpu: int) -> Iterator[None]:
    """The client, with all its threads, where nothing else runs: its own delays do not count."""
    before = os.sched_getaffinity(0)
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def print_line(name: str, beside: str, gaps_s: list[float]) -> None:
    """A line of the table."""
    p50, p99, p999 = (percentile(gaps_s, share) * 1e3 for share in (0.5, 0.99, 0.999))
    print(
        f"{name:<22} {beside:<10} {p50:8.2f} {p99:8.2f} {p999:8.2f} {max(gaps_s) * 1e3:8.1f}",
        flush=True,
    )


def placement_of(uri: str) -> str:
    """What the processes of the tree were really given."""
    with Client(uri) as client:
        listing = client.ps()
    named = {
        role: ",".join({format_cpus(p.cpus): None for p in listing.processes if p.role == role})
        for role in ("gpu", "sampler", "coscheduler", "detokenizer")
    }
    cpus = "; ".join(f"{role} {places}" for role, places in named.items())
    return f"CPUs: {cpus}; groups: {listing.cgroup or 'none'}"


def tree_options(options: argparse.Namespace) -> dict[str, object]:
    """Of a model of random weights, or of the mock model where there is no device."""
    if options.model == "mock":
        return {"model": "mock", "mock_step_us": 5000, "max_num_seqs": options.streams}
    return {
        "model": str(CONFIGS / f"llama-{options.model}.json"),
        "load_format": "dummy",
        "device": "cuda",
        "max_num_seqs": options.streams,
        "max_model_len": 2048,
        "num_samplers": 8,
    }


def main() -> int:
    """One tree after the other."""
    options = _parse()
    if options.group:
        enter(options.group)
    *shared, options.cpu = sorted(os.sched_getaffinity(0))
    if not shared:
        sys.exit("needs two CPUs: one is the client's own")
    os.sched_setaffinity(0, shared)  # trees and hogs inherit it
    options.hogs = options.hogs or 2 * len(shared)
    print(f"{options.model}, {options.streams} streams of {options.out} tokens; ms between tokens")
    print(f"{'placement':<22} {'beside':<10} {'p50':>8} {'p99':>8} {'p99.9':>8} {'longest':>8}")
    for name in options.placements:
        measure(name, options)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="8b", choices=["13b", "8b", "mock"])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--out", type=int, default=256)
    parser.add_argument("--hogs", type=int, default=0, help="0: two for each CPU")
    parser.add_argument("--group", default="", help="folder of an empty cgroup (v2)")
    parser.add_argument("--placements", nargs="+", default=list(PLACEMENTS), choices=PLACEMENTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
