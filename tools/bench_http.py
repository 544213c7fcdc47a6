"""The front door alone: what HTTP costs on top of the tree behind it.

    python -m tools.bench_http [--only source,small,load,first] [--seconds 60]

source  pieces per second over HTTP/2 from streams that are never waited for, in one process with
        the server; the client only counts
small   chats of one token per second, end to end on the mock engine
load    200 streams of 20 tokens/s each on the mock engine: what comes how late, once all have begun
first   demo model: time to the first token through HTTP minus through the SDK, in turns
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import psutil

from hybridgen import Client, SamplingParams
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import TreeHandle, start_tree
from tests.support.free_port import free_port
from tools.bench_serve import percentile
from tools.http2_counter import Http2Counter

CHAT = "/v1/chat/completions"
NUM_SOURCES = 16
NUM_PIECES = 5_000
NUM_SMALL, NUM_SMALL_AT_ONCE = 10_000, 64
#: 50 ms a token with what the tree itself takes beside the engine's time.
NUM_STREAMS, STEP_MS, ENGINE_MS = 200, 50, 46
MAX_PROMPT_TOKENS, BLOCK_TOKENS = 192, 16
NUM_FIRST = 40
PROMPT = "Write one sentence about the sea."


def chat(num_tokens: int, text: str = PROMPT, **options: object) -> bytes:
    """A chat of exactly so many tokens."""
    limits = {"max_tokens": num_tokens, "min_tokens": num_tokens, "ignore_eos": True}
    messages = [{"role": "user", "content": text}]
    return msgspec.json.encode({"messages": messages, "seed": 1, **limits, **options})


@contextlib.contextmanager
def tree(**options: object) -> Iterator[tuple[TreeHandle, int]]:
    """A tree with a gateway, and its port."""
    port = free_port()
    handle = start_tree(config_from_options({"num_gateways": 1, "port": port, **options}))
    try:
        yield handle, port
    finally:
        handle.stop()


def gateway(handle: TreeHandle) -> psutil.Process:
    """The gateway's process."""
    with Client(handle.uri) as client:
        return psutil.Process(next(p.pid for p in client.ps().processes if p.name == "gateway-0"))


def cpu_s(process: psutil.Process) -> float:
    """CPU time that a process has used so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


# --- the measurements ---------------------------------------------------------------------------


def bench_source(_: float) -> None:
    """Server and source in one process of their own."""
    port = free_port()
    command = [sys.executable, "-m", "tools.http_source", str(port), str(NUM_PIECES)]
    with subprocess.Popen(command) as server:
        try:
            wait_open(port)
            process = psutil.Process(server.pid)
            with Http2Counter(port) as counter:
                before_s, started_s = cpu_s(process), time.perf_counter()
                counter.ask(CHAT, [chat(1, stream=True)] * NUM_SOURCES)
                counter.wait()
                took_s = time.perf_counter() - started_s
            used_s = cpu_s(process) - before_s
        finally:
            server.terminate()
    assert counter.statuses == {200: NUM_SOURCES}, counter.statuses
    num = counter.num_events
    print(f"source: {num / took_s:,.0f} pieces/s over {NUM_SOURCES} streams of one connection;")
    print(f"        {used_s / num * 1e6:.2f} µs of the server's CPU a piece", flush=True)


def bench_small(_: float) -> None:
    """Whole answers of one token."""
    with tree(model="mock", max_num_seqs=128, log_level="warning") as (handle, port):
        process = gateway(handle)
        body = chat(1)
        with Http2Counter(port) as counter:
            counter.ask(CHAT, [body] * 500, NUM_SMALL_AT_ONCE)  # warm
            counter.wait()
            before_s, started_s, own_s = cpu_s(process), time.perf_counter(), time.process_time()
            counter.ask(CHAT, [body] * NUM_SMALL, NUM_SMALL_AT_ONCE)
            counter.wait()
            took_s = time.perf_counter() - started_s
            used_s, own_s = cpu_s(process) - before_s, time.process_time() - own_s
        assert counter.statuses == {200: NUM_SMALL + 500}, counter.statuses
    print(f"small:  {NUM_SMALL / took_s:,.0f} chats/s of one token, {NUM_SMALL_AT_ONCE} at once;")
    print(f"        {used_s / NUM_SMALL * 1e6:.0f} µs of the gateway's CPU each,", end=" ")
    print(f"{own_s / NUM_SMALL * 1e6:.0f} µs of the client's", flush=True)


def bench_load(seconds: float) -> None:
    """Steady streams; how much later than the first piece of a step its other pieces come."""
    num_tokens = int(seconds * 1000 / STEP_MS)
    max_model_len = num_tokens + MAX_PROMPT_TOKENS
    with tree(
        model="mock",
        mock_step_us=ENGINE_MS * 1000,
        max_num_seqs=256,
        mock_max_model_len=max_model_len,
        num_kv_blocks=NUM_STREAMS * (max_model_len // BLOCK_TOKENS + 1),
        request_timeout_s=2 * seconds + 60,  # however busy the machine is
        log_level="warning",
    ) as (handle, port):
        process = gateway(handle)
        with Http2Counter(port, is_timing=True) as counter:
            bodies = [chat(num_tokens, f"{n}", stream=True) for n in range(NUM_STREAMS)]
            before_s, started_s = cpu_s(process), time.perf_counter()
            counter.ask(CHAT, bodies)
            counter.wait()
            took_s = time.perf_counter() - started_s
            used_s = cpu_s(process) - before_s
    assert counter.statuses == {200: NUM_STREAMS}, counter.statuses
    num_errors = NUM_STREAMS - counter.num_ended_well
    # Not gaps of a stream: half a character waits for its other half, however fast the server is.
    steps = counter.steps_s(STEP_MS / 4 * 1e-3)
    late_ms = [(at_s - step[0]) * 1000 for step in steps for at_s in step]
    span_s = steps[-1][0] - steps[0][0]
    late = [percentile(late_ms, share) for share in (0.5, 0.99, 0.999)]
    begins = [step[0] for step in steps]
    apart_ms = [(later - earlier) * 1000 for earlier, later in itertools.pairwise(begins)]
    rate = NUM_STREAMS * (len(steps) - 1) / span_s
    print(f"load:   {NUM_STREAMS} streams, {rate:,.0f} tokens/s for {span_s:.0f} s,", end=" ")
    print(f"{num_errors} errors;")
    print(f"        steps {statistics.median(apart_ms):.1f} ms apart", end=" ")
    print(f"(p99 {percentile(apart_ms, 0.99):.1f});", end=" ")
    print(f"after a step's first piece p50 {late[0]:.2f} p99 {late[1]:.2f} p99.9 {late[2]:.2f} ms;")
    print(f"        {used_s / took_s:.1%} of a core by the gateway", flush=True)


def bench_first(_: float) -> None:
    """In turns, so that both see the same machine."""
    with tree(model="demo") as (handle, port), Client(handle.uri) as client:
        sdk_ms, http_ms = [], []
        for n in range(NUM_FIRST):
            text = f"{PROMPT} {n}"
            sdk_ms.append(first_through_sdk_ms(client, text))
            http_ms.append(first_through_http_ms(port, text))
    medians_ms = statistics.median(sdk_ms), statistics.median(http_ms)
    pairs_ms = [http - sdk for http, sdk in zip(http_ms, sdk_ms, strict=True)]
    print(f"first:  p50 SDK {medians_ms[0]:.1f} ms, HTTP {medians_ms[1]:.1f} ms;", end=" ")
    print(f"median of the differences {statistics.median(pairs_ms):+.2f} ms", flush=True)


def first_through_sdk_ms(client: Client, text: str) -> float:
    """From submit to the first text."""
    params = SamplingParams(seed=1, max_tokens=4, min_tokens=4, ignore_eos=True)
    started_s = time.perf_counter()
    with client.submit([{"role": "user", "content": text}], params) as stream:
        next(iter(stream))
        took_s = time.perf_counter() - started_s
        stream.result()
    return took_s * 1000


def first_through_http_ms(port: int, text: str) -> float:
    """From the request to the first event, on a connection that is open already."""
    with Http2Counter(port, is_timing=True) as counter:
        counter.settle()
        started_s = time.perf_counter()
        counter.ask(CHAT, [chat(4, text, stream=True)])
        counter.wait()
        return (counter.first_s() - started_s) * 1000


def wait_open(port: int) -> None:
    """Until somebody listens."""
    ends_s = time.monotonic() + 10
    while time.monotonic() < ends_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit("the server did not start")


BENCHES: dict[str, Callable[[float], None]] = {
    "source": bench_source,
    "small": bench_small,
    "load": bench_load,
    "first": bench_first,
}


def main() -> int:
    """All of them, or those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(BENCHES))
    parser.add_argument("--seconds", type=float, default=60.0, help="of load")
    options = parser.parse_args()
    for name in options.only.split(","):
        print(f"(load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)")
        BENCHES[name](options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
