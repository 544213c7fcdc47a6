"""Loads that a server has to bear, on the mock engine: what it does, and whether it is well after.

    python -m tools.loads [--only overload,cancels,long,never-reading,soak] [--seconds 60]

overload  as many clients as rows, each with one request at a time: that rate is the knee; then
          requests at three times the rate, whatever becomes of them: goodput, and how soon the rest
          is refused
cancels   500 requests a second that are cancelled at once or a little later; beside them streams
          whose texts are known
long      short chats alone, then beside two clients that always have a prompt of 30,000 tokens open
never-reading
          streams over HTTP alone, then beside 200 that nobody reads: pauses between tokens, memory
          of the gateway, and how many of the 200 were cancelled
soak      streams of known texts for ``--seconds``: differences, memory and descriptors of each
          process
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil

from hybridgen import AsyncClient, Client, SamplingParams
from hybridgen.errors import HybridGenError, QueueFull
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import TreeHandle, start_tree
from tests.support.free_port import free_port
from tests.support.http_caller import get
from tools.bench_serve import percentile
from tools.http2_attacks import NUM_SLOW, SlowReaders
from tools.http2_counter import Http2Counter
from tools.http2_floods import CHAT, chat_body

STEP_US, NUM_ROWS, NUM_TOKENS = 10_000, 40, 25
NUM_CANCELS_PER_S = 500
NUM_KNOWN = 8
LONG_TOKENS, NUM_LONG = 30_000, 2
NUM_SHORT, SHORT_TOKENS = 16, 16
#: Beside the readers that take so many bytes and no more.
NUM_READ, READ_STEP_US = 16, 25_000
UNREAD_WINDOW, UNREAD_S = 64 * 1024, 2.0
NUM_SOAK, SOAK_LOOK_S = 32, 5.0


@contextmanager
def tree(**options: object) -> Iterator[TreeHandle]:
    """A tree of the mock model without a gateway."""
    defaults = {"model": "mock", "num_gateways": 0, "log_level": "warning"}
    handle = start_tree(config_from_options(defaults | options))
    try:
        yield handle
    finally:
        handle.stop()


def params(seed: int, num_tokens: int) -> SamplingParams:
    """Sampled, and of a fixed length."""
    return SamplingParams(
        temperature=0.8, seed=seed, max_tokens=num_tokens, min_tokens=num_tokens, ignore_eos=True
    )


async def at_a_rate(
    per_s: float, seconds: float, start_one: Callable[[int], Awaitable[None]]
) -> None:
    """Start one after the other at random moments (a Poisson process); wait for all."""
    draw = random.Random(1)
    ends_s = time.monotonic() + seconds
    due_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        number = 0
        while due_s < ends_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            group.create_task(_whole(start_one(number)))
            number += 1
            due_s += draw.expovariate(per_s)


async def _whole(work: Awaitable[None]) -> None:
    await work


# --- overload -----------------------------------------------------------------------------------


class Offered:
    """What became of the requests."""

    def __init__(self) -> None:
        self.num_served = 0
        self.refused_s: list[float] = []
        self.errors: list[str] = []


async def offer(client: AsyncClient, per_s: float, seconds: float) -> tuple[Offered, float]:
    """Requests at this rate; requests served per second until the last was through."""
    offered = Offered()

    async def one(number: int) -> None:
        asked_s = time.perf_counter()
        try:
            await client.generate([300 + number % 200] * 16, params(number, NUM_TOKENS))
            offered.num_served += 1
        except QueueFull:
            offered.refused_s.append(time.perf_counter() - asked_s)
        except HybridGenError as error:
            offered.errors.append(str(error))

    started_s = time.perf_counter()
    await at_a_rate(per_s, seconds, one)
    return offered, offered.num_served / (time.perf_counter() - started_s)


async def knee(client: AsyncClient, seconds: float) -> float:
    """Requests per second of a full batch."""
    num_served = 0
    ends_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        nonlocal num_served
        while time.monotonic() < ends_s:
            await client.generate([300 + number] * 16, params(number, NUM_TOKENS))
            num_served += 1

    started_s = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(NUM_ROWS)))
    return num_served / (time.perf_counter() - started_s)


def overload(seconds: float) -> None:
    """At the knee, then three times as many."""

    async def run(uri: str) -> None:
        async with AsyncClient(uri) as client:
            most = await knee(client, seconds)
            offered, goodput = await offer(client, 3 * most, seconds)
        refused_ms = [took_s * 1000 for took_s in offered.refused_s] or [0.0]
        shares = [percentile(refused_ms, share) for share in (0.5, 0.99)]
        print(f"overload: {most:.1f}/s at the knee; at three times as many {goodput:.1f}/s served")
        print(f"          ({goodput / most:.1%}), {len(refused_ms)} refused after", end=" ")
        print(f"p50 {shares[0]:.1f} p99 {shares[1]:.1f} ms, {len(offered.errors)} other errors")

    with tree(mock_step_us=STEP_US, max_num_seqs=NUM_ROWS) as handle:
        asyncio.run(run(handle.uri))


# --- cancels ------------------------------------------------------------------------------------


def cancels(seconds: float) -> None:
    """Cancelled in the queue, in prefill, in decode; known streams go on beside them."""

    async def run(uri: str) -> None:
        async with AsyncClient(uri) as client:
            known = [await known_text(client, number) for number in range(NUM_KNOWN)]
            num_different = 0
            is_over = False
            draw = random.Random(2)

            async def check(number: int) -> None:
                nonlocal num_different
                while not is_over:
                    num_different += await known_text(client, number) != known[number]

            async def cancel_one(number: int) -> None:
                stream = client.submit([300 + number % 200] * 16, params(number, 200))
                await asyncio.sleep(draw.choice((0.0, 0.005, 0.05, 0.2)))
                stream.close()

            checks = [asyncio.create_task(check(number)) for number in range(NUM_KNOWN)]
            await at_a_rate(NUM_CANCELS_PER_S, seconds, cancel_one)
            over_s = time.monotonic()
            is_over = True
            await asyncio.gather(*checks)
            while True:
                report = await client.health()
                if report.num_free_slots == report.num_slots:
                    break
                await asyncio.sleep(0.01)
            took_s = time.monotonic() - over_s
            print(f"cancels: {NUM_CANCELS_PER_S}/s for {seconds:.0f} s; every slot and block free")
            print(f"         {took_s:.2f} s after the last; {num_different} texts differed,")
            free = f"{report.num_free_blocks} of {report.num_blocks}"
            print(f"         {free} blocks free", flush=True)

    with tree(mock_step_us=2000, max_num_seqs=64, backlog_limit=1000) as handle:
        asyncio.run(run(handle.uri))


async def known_text(client: AsyncClient, number: int) -> str:
    """Always the same."""
    return (await client.generate([260 + number] * 16, params(number, 64))).text


# --- long prompts among short ones --------------------------------------------------------------


def long_prompts(seconds: float) -> None:
    """Time to the first token of short chats."""

    async def run(uri: str) -> None:
        async with AsyncClient(uri) as client:
            alone_s = await short_chats(client, seconds / 2)
            is_over = False
            num_long = 0

            async def keep_long(number: int) -> None:
                nonlocal num_long
                while not is_over:
                    text = f"{number} {num_long} " + "word " * (LONG_TOKENS // 5)
                    await client.generate(text, params(number, 1))
                    num_long += 1

            tasks = [asyncio.create_task(keep_long(number)) for number in range(NUM_LONG)]
            beside_s = await short_chats(client, seconds / 2)
            is_over = True
            await asyncio.gather(*tasks)
        for name, times_s in (("alone", alone_s), ("beside", beside_s)):
            shares = [percentile(times_s, share) * 1000 for share in (0.5, 0.99)]
            print(f"long:    short chats {name}: first token p50 {shares[0]:.1f}", end=" ")
            print(f"p99 {shares[1]:.1f} ms ({len(times_s)} of them)")
        print(f"         {num_long} prompts of some {LONG_TOKENS} tokens beside", flush=True)

    with tree(mock_step_us=5000, max_num_seqs=64, mock_max_model_len=32_768) as handle:
        asyncio.run(run(handle.uri))


async def short_chats(client: AsyncClient, seconds: float) -> list[float]:
    """Seconds to the first token of each."""
    times_s: list[float] = []
    ends_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        while time.monotonic() < ends_s:
            asked_s = time.perf_counter()
            prompt = f"Question {number}, {len(times_s)}?"
            async with client.submit(prompt, params(number, SHORT_TOKENS)) as stream:
                await anext(stream)
                times_s.append(time.perf_counter() - asked_s)
                await stream.result()

    await asyncio.gather(*(one(number) for number in range(NUM_SHORT)))
    return times_s


# --- streams that nobody reads ------------------------------------------------------------------


def never_reading(seconds: float) -> None:
    """Others notice little of them, memory is bounded, and they are cancelled."""
    port = free_port()
    num_tokens = int(seconds / 2 / (READ_STEP_US / 1e6))
    limits = {"max_num_seqs": NUM_SLOW + NUM_READ, "slow_reader_timeout_s": UNREAD_S}
    with (
        tree(num_gateways=1, port=port, mock_step_us=READ_STEP_US, **limits) as handle,
        Client(handle.uri) as client,
    ):
        gateway = psutil.Process(next(p.pid for p in client.ps().processes if p.role == "gateway"))
        alone_s, rss = pauses_s(port, num_tokens), gateway.memory_info().rss
        readers = SlowReaders(port, UNREAD_WINDOW)
        thread = threading.Thread(target=readers.run)
        thread.start()
        while scraped(port, "hybridgen_requests_running") < NUM_SLOW:
            time.sleep(0.05)  # what prompts cost is another load
        beside_s, grown = pauses_s(port, num_tokens), gateway.memory_info().rss - rss
        num_cancelled = scraped(port, "hybridgen_http_disconnects_total")
        readers.stop()
        thread.join()
    alone, beside = (percentile(s, 0.99) * 1000 for s in (alone_s, beside_s))
    print(
        f"never-reading: {NUM_READ} streams, between two tokens p99 {alone:.1f} ms alone,", end=" "
    )
    print(f"{beside:.1f} ms ({beside / alone:.2f} ×) beside {NUM_SLOW} that nobody reads;")
    print(f"         of those {num_cancelled:.0f} cancelled; the gateway grew by", end=" ")
    print(f"{grown / 2**20:.1f} MiB", flush=True)


def pauses_s(port: int, num_tokens: int) -> list[float]:
    """Seconds between two tokens of a stream, of all streams, once all have begun."""
    with Http2Counter(port, is_timing=True) as counter:
        counter.ask(CHAT, [chat_body(num_tokens, stream=True)] * NUM_READ)
        counter.wait()
        return counter.gaps_s(counter.steady_span_s()[0])


def scraped(port: int, name: str) -> float:
    """A number of the metrics page."""
    lines = get(port, "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[-1])


# --- soak ---------------------------------------------------------------------------------------


class Look(NamedTuple):
    """One process at one moment."""

    at_s: float
    rss_bytes: int
    num_descriptors: int


def soak(seconds: float) -> None:
    """Slopes over the second half: until then caches fill."""
    with tree(mock_step_us=10_000, max_num_seqs=NUM_SOAK) as handle:
        with Client(handle.uri) as client:
            processes = {p.name: psutil.Process(p.pid) for p in client.ps().processes if p.pid}
        looks: dict[str, list[Look]] = {name: [] for name in processes}
        num_requests, num_different = asyncio.run(_soak(handle.uri, seconds, processes, looks))
    print(f"soak:    {NUM_SOAK} streams, {seconds:.0f} s, {num_requests} requests,", end=" ")
    print(f"{num_different} texts differed")
    for name, seen in looks.items():
        half = seen[len(seen) // 2 :]
        slope = statistics.linear_regression([x.at_s for x in half], [x.rss_bytes for x in half])
        descriptors = sorted({x.num_descriptors for x in half})
        print(f"         {name:16s} {slope.slope * 3600 / 2**20:+7.2f} MiB/h,", end=" ")
        print(f"{half[-1].rss_bytes / 2**20:6.1f} MiB, descriptors {descriptors}", flush=True)


async def _soak(
    uri: str, seconds: float, processes: dict[str, psutil.Process], looks: dict[str, list[Look]]
) -> tuple[int, int]:
    ends_s = time.monotonic() + seconds
    num_requests = num_different = 0

    async def one(client: AsyncClient, number: int) -> None:
        nonlocal num_requests, num_different
        expected = await known_text(client, number)
        while time.monotonic() < ends_s:
            num_different += await known_text(client, number) != expected
            num_requests += 1

    async def look() -> None:
        while time.monotonic() < ends_s:
            for name, process in processes.items():
                rss_bytes, count = process.memory_info().rss, process.num_fds()
                looks[name].append(Look(time.monotonic(), rss_bytes, count))
            await asyncio.sleep(SOAK_LOOK_S)

    async with AsyncClient(uri) as client:
        await asyncio.gather(look(), *(one(client, number) for number in range(NUM_SOAK)))
    return num_requests, num_different


LOADS: dict[str, Callable[[float], None]] = {
    "overload": overload,
    "cancels": cancels,
    "long": long_prompts,
    "never-reading": never_reading,
    "soak": soak,
}


def main() -> int:
    """Those that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(LOADS))
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        print(f"(load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)", flush=True)
        LOADS[name](arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
