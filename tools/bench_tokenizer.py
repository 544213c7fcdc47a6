"""How many tokens a second does one tokenizer process make?

    python -m tools.bench_tokenizer [--model demo] [--seconds 3] [--chars 4000]

Prompts of real text, English with code and tables. Four ways to encode them: the native library
alone; a prompt encoder in this process, which also checks the prompt and keeps its special-token
text as text; the tokenizer process of a whole tree, asked by a client over its sockets; and the
definition of BPE in Python, with a table of the words that it has seen.

Rates are for each second of CPU time of the process that encodes, so that others on the machine
do not matter. For the tree the rate on the wall clock is added: it also pays for the client and
the coscheduler.
"""

from __future__ import annotations

import argparse
import asyncio
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
from hybridgen.text.prompt_encoder import build_prompt_encoder
from tests.text.reference_bpe import ReferenceBpe

NUM_OPEN = 8
TEXTS = (Path(__file__).parents[1] / "docs").glob("*.md")


class Rate(NamedTuple):
    """Tokens for each second of CPU time, and of the wall clock."""

    name: str
    per_cpu_s: float
    per_wall_s: float


def prompts(num_chars: int) -> list[str]:
    """The repository's own documentation, cut into pieces."""
    text = "".join(path.read_text("utf-8") for path in sorted(TEXTS))
    return [text[start : start + num_chars] for start in range(0, len(text), num_chars)]


def measure(
    name: str, encode: Callable[[str], list[int]], texts: list[str], seconds: float
) -> Rate:
    """In this process, after one round that is not counted."""
    for text in texts:
        encode(text)
    wall, cpu, num_tokens = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - wall < seconds:
        num_tokens += sum(len(encode(text)) for text in texts)
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    return Rate(name, num_tokens / cpu_s, num_tokens / wall_s)


def in_process(spec: TokenizerSpec, texts: list[str], seconds: float) -> list[Rate]:
    """Everything but the tree."""
    library = build_bpe_encoder(spec)
    encoder = build_prompt_encoder(spec)
    reference = ReferenceBpe(spec)

    def as_text(text: str) -> list[int]:
        return encoder.encode(TextPrompt(text))

    def as_chat(text: str) -> list[int]:
        return encoder.encode(_chat(text))

    return [
        measure("the library alone", lambda text: library.encode_run(text, True), texts, seconds),
        measure("the prompt encoder, texts", as_text, texts, seconds),
        measure("the prompt encoder, chats", as_chat, texts, seconds),
        measure("Python, with a table of words", reference.encode, texts, seconds),
    ]


def _chat(text: str) -> Prompt:
    return ChatPrompt.of([{"role": "user", "content": text}])


async def through_the_tree(name: str, uri: str, asked: list[Prompt], seconds: float) -> Rate:
    """By a client that always has ``NUM_OPEN`` questions open."""
    async with AsyncClient(uri) as client:
        for prompt in asked:
            await client.tokenize(prompt)
        start = time.perf_counter()
        cpu = await _cpu_time_s(client)

        async def ask(index: int) -> int:
            num_tokens = 0
            while time.perf_counter() - start < seconds:
                ids = await client.tokenize(asked[index % len(asked)])
                num_tokens += len(ids)
                index += NUM_OPEN
            return num_tokens

        num_tokens = sum(await asyncio.gather(*(ask(first) for first in range(NUM_OPEN))))
        cpu_s = await _cpu_time_s(client) - cpu
        return Rate(name, num_tokens / cpu_s, num_tokens / (time.perf_counter() - start))


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
        ):
            rates.append(asyncio.run(through_the_tree(name, tree.uri, [*asked], options.seconds)))
    finally:
        tree.stop()
    print(f"{len(texts)} prompts of {options.chars} characters, {options.model}")
    print(f"{'':32} {'tokens/CPU s':>14} {'of the library':>15} {'tokens/s':>12}")
    for rate in rates:
        share = rate.per_cpu_s / rates[0].per_cpu_s
        print(f"{rate.name:32} {rate.per_cpu_s:14,.0f} {share:15.1%} {rate.per_wall_s:12,.0f}")


if __name__ == "__main__":
    main()
