"""How many tokens a second does one tokenizer process make?

    python -m tools.bench_tokenizer [--model demo] [--seconds 3] [--chars 4000]

Prompts of real text, English with code and tables. Ways to encode them: the native library alone,
by its usual call and by the one that keeps no offsets, which is what a tokenizer process uses; a
prompt encoder in this process, which also checks the prompt and keeps its special-token text as
text; the tokenizer process of a whole tree, asked by a client over its sockets; and the definition
of BPE in Python, with a table of the words that it has seen.

Rates are for each second of CPU time of the process that encodes. Those in this process are taken
in turns, and the best round counts: others on the machine slow a process down, never up. For the
tree the rate on the wall clock is added: it also pays for the client and the coscheduler.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hybridgen.client import AsyncClient
from hybridgen.config import Config
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.tree import start_tree
from hybridgen.request import ChatPrompt, Prompt, TextPrompt
from hybridgen.text.bpe_encoder import build_bpe_encoder
from hybridgen.text.cpu_limit import CpuTicks
from hybridgen.text.prompt_encoder import build_prompt_encoder
from tests.text.reference_bpe import ReferenceBpe

NUM_OPEN = 8
NUM_ROUNDS = 3
SMALL = [f"hi {number}" for number in range(100)]
TEXTS = (Path(__file__).parents[1] / "docs").glob("*.md")


class Rate(NamedTuple):
    """What one way of encoding takes."""

    name: str
    num_tokens: int
    num_prompts: int
    cpu_s: float
    wall_s: float = 0.0  # unless taken

    @property
    def per_cpu_s(self) -> float:
        """Tokens for each second of CPU time."""
        return self.num_tokens / self.cpu_s


def prompts(num_chars: int) -> list[str]:
    """The repository's own documentation, cut into pieces."""
    text = "".join(path.read_text("utf-8") for path in sorted(TEXTS))
    return [text[start : start + num_chars] for start in range(0, len(text), num_chars)]


def in_process(spec: TokenizerSpec, texts: list[str], seconds: float) -> list[Rate]:
    """Everything but the tree, in turns; after one round that is not counted the best of each."""
    library = build_bpe_encoder(spec)
    encoder = build_prompt_encoder(spec)
    reference = ReferenceBpe(spec)
    ways: dict[str, tuple[Callable[[str], list[int]], list[str]]] = {
        "the library alone": (lambda text: library._tokenizer.encode(text).ids, texts),
        "the library without offsets": (lambda text: library.encode_run(text, True), texts),
        "the prompt encoder, texts": (lambda text: encoder.encode(TextPrompt(text)), texts),
        "the prompt encoder, chats": (lambda text: encoder.encode(_chat(text)), texts),
        "the prompt encoder, small chats": (lambda text: encoder.encode(_chat(text)), SMALL),
        "Python, with a table of words": (reference.encode, texts),
    }
    with CpuTicks():
        rounds = [[_one_round(name, *way) for name, way in ways.items()]]
        ends_s = time.perf_counter() + seconds * len(ways)
        while time.perf_counter() < ends_s:
            rounds.append([_one_round(name, *way) for name, way in ways.items()])
    return [max(rates, key=lambda rate: rate.per_cpu_s) for rates in zip(*rounds[1:], strict=True)]


def _one_round(name: str, encode: Callable[[str], list[int]], texts: list[str]) -> Rate:
    start_s = time.thread_time()
    num_tokens = sum(len(encode(text)) for text in texts)
    return Rate(name, num_tokens, len(texts), time.thread_time() - start_s)


def _chat(text: str) -> Prompt:
    return ChatPrompt.of([{"role": "user", "content": text}])


async def through_the_tree(name: str, uri: str, asked: list[Prompt], seconds: float) -> Rate:
    """By a client that always has ``NUM_OPEN`` questions open; the best of some rounds."""
    async with AsyncClient(uri) as client:
        for prompt in asked:
            await client.tokenize(prompt)
        rounds = [
            await _tree_round(name, client, asked, seconds / NUM_ROUNDS) for _ in range(NUM_ROUNDS)
        ]
    return max(rounds, key=lambda rate: rate.per_cpu_s)


async def _tree_round(name: str, client: AsyncClient, asked: list[Prompt], seconds: float) -> Rate:
    start_s = time.perf_counter()
    cpu_s = await _cpu_time_s(client)

    async def ask(index: int) -> list[int]:
        nums_tokens = []
        while time.perf_counter() - start_s < seconds:
            nums_tokens.append(len(await client.tokenize(asked[index % len(asked)])))
            index += NUM_OPEN
        return nums_tokens

    nums_tokens = [*itertools.chain(*await asyncio.gather(*map(ask, range(NUM_OPEN))))]
    cpu_s = await _cpu_time_s(client) - cpu_s
    return Rate(name, sum(nums_tokens), len(nums_tokens), cpu_s, time.perf_counter() - start_s)


async def _cpu_time_s(client: AsyncClient) -> float:
    processes = (await client.ps()).processes
    return next(one.cpu_time_s for one in processes if one.name == "tokenizer-0")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--chars", type=int, default=4000)
    options = parser.parse_args()
    config: Config = config_from_options({"model": options.model, "num_tokenizers": 1})
    texts = prompts(options.chars)
    spec = inspect_model(options.model, config).tokenizer
    rates = in_process(spec, texts, options.seconds)
    tree = start_tree(config)
    try:
        for name, asked in (
            ("the tokenizer process, texts", [TextPrompt(text) for text in texts]),
            ("the tokenizer process, chats", [_chat(text) for text in texts]),
            ("the tokenizer process, small chats", [_chat(text) for text in SMALL]),
        ):
            rates.append(asyncio.run(through_the_tree(name, tree.uri, [*asked], options.seconds)))
    finally:
        tree.stop()
    print(f"{len(texts)} prompts of {options.chars} characters, {options.model}")
    print(f"{'':35} {'tokens/CPU s':>12} {'of the library':>15} {'tokens/s':>10} {'µs each':>8}")
    for rate in rates:
        share = rate.per_cpu_s / rates[0].per_cpu_s
        each_us = rate.cpu_s / rate.num_prompts * 1e6
        per_wall = f"{rate.num_tokens / rate.wall_s:,.0f}" if rate.wall_s else ""
        columns = f"{rate.per_cpu_s:12,.0f} {share:15.1%} {per_wall:>10} {each_us:8,.0f}"
        print(f"{rate.name:35} {columns}")


if __name__ == "__main__":
    main()
