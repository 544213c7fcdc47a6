"""64 concurrent streams on the mock engine: no error, no gap, no repeat, for a given time.

    python -m tools.soak [--streams 64] [--seconds 60] [--model mock]

Each stream's text is checked against the same request's first answer, so a gap, a repeat or
another request's text shows as a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from hybridgen import AsyncClient, SamplingParams
from hybridgen.errors import HybridGenError
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree

MAX_TOKENS = 64


class Tally:
    """What was seen."""

    def __init__(self) -> None:
        self.golden: dict[int, str] = {}
        self.num_requests = 0
        self.num_tokens = 0
        self.num_errors = 0
        self.num_differences = 0
        self.first_error = ""


async def one_stream(client: AsyncClient, number: int, stop_at_s: float, tally: Tally) -> None:
    """Ask the same question until the time is over."""
    params = SamplingParams(
        temperature=0.8, seed=number, max_tokens=MAX_TOKENS, min_tokens=MAX_TOKENS
    )
    while time.monotonic() < stop_at_s:
        try:
            output = await client.generate(f"Question number {number}", params)
        except HybridGenError as error:
            tally.num_errors += 1
            tally.first_error = tally.first_error or str(error)
            continue
        tally.num_requests += 1
        tally.num_tokens += len(output.token_ids)
        if tally.golden.setdefault(number, output.text) != output.text:
            tally.num_differences += 1


async def soak(uri: str, num_streams: int, seconds: float) -> Tally:
    """Run all streams at once."""
    tally = Tally()
    stop_at_s = time.monotonic() + seconds
    async with AsyncClient(uri) as client:
        await asyncio.gather(
            *(one_stream(client, number, stop_at_s, tally) for number in range(num_streams))
        )
    return tally


def main() -> int:
    """Parse, run, print; exit code 1 when anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--model", default="mock")
    arguments = parser.parse_args()
    handle = start_tree(config_from_options({"model": arguments.model, "mock_step_us": 1000}))
    try:
        started_s = time.monotonic()
        tally = asyncio.run(soak(handle.uri, arguments.streams, arguments.seconds))
        elapsed_s = time.monotonic() - started_s
    finally:
        handle.stop()
    print(
        f"{arguments.streams} streams, {elapsed_s:.0f} s: {tally.num_requests} requests, "
        f"{tally.num_tokens / elapsed_s:.0f} tokens/s, {tally.num_errors} errors, "
        f"{tally.num_differences} differences {tally.first_error}"
    )
    return int(tally.num_errors + tally.num_differences > 0)


if __name__ == "__main__":
    sys.exit(main())
