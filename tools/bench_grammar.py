"""JSON by schema from the demo model: is every answer valid, and what does a mask cost?

    python -m tools.bench_grammar [--model demo] [--answers 50] [--seed 1]

Asks for ``--answers`` objects by ten schemas, over several topics, at temperature 0.8, and checks
each answer with jsonschema. Then replays the tokens of the answers through matchers as a sampler
does and prints p50, p99 and the longest time in microseconds: of a mask, which is one token taken
in and the set of those that may follow; of compiling a schema; and of the native kernel's share.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jsonschema
import numpy as np

from hybridgen.config import Config
from hybridgen.formats.inspect import inspect_model
from hybridgen.launch.config_sources import config_from_options
from hybridgen.llm import LLM
from hybridgen.request import ChatMessage, ChatPrompt, Grammar, RequestOutput, SamplingParams
from hybridgen.sampling import _native, parameters
from hybridgen.sampling.matchers import Matchers
from hybridgen.text.vocabulary import build_vocabulary

MAX_TOKENS = 400
TOPICS = ("a doctor", "a village", "a red car", "a song", "the weather in Oslo")
NAME = {"type": "string", "minLength": 1, "maxLength": 24}
WORDS = {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 4}

#: A number without a last digit may go on for as long as a weak model likes.
HALVES = {"type": "number", "minimum": 0, "maximum": 5, "multipleOf": 0.5}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


SCHEMAS: list[dict[str, Any]] = [
    _object(name=NAME, age={"type": "integer", "minimum": 0, "maximum": 120}),
    _object(title=NAME, tags=WORDS, rating=HALVES),
    _object(kind={"enum": ["person", "place", "thing"]}, is_alive={"type": "boolean"}),
    _object(name=NAME, place=_object(city=NAME, country=NAME)),
    _object(items={"type": "array", "items": _object(word=NAME), "minItems": 1, "maxItems": 3}),
    _object(day={"type": "string", "format": "date"}, id={"type": "string", "format": "uuid"}),
    _object(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, note=NAME),
    _object(value={"anyOf": [{"type": "integer", "maximum": 10**6}, NAME, {"type": "null"}]}),
    {
        "$defs": {"point": _object(x={"enum": [0, 1, 2]}, y={"enum": [0, 1, 2]})},
        **_object(first={"$ref": "#/$defs/point"}, second={"$ref": "#/$defs/point"}),
    },
    {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 2, "maxItems": 4},
]


def ask(model: str, num_answers: int, seed: int) -> list[tuple[dict[str, Any], RequestOutput]]:
    """Schemas and what was answered."""
    schemas = [SCHEMAS[index % len(SCHEMAS)] for index in range(num_answers)]
    prompts = [
        ChatPrompt([ChatMessage("user", f"Describe {TOPICS[index // 10 % len(TOPICS)]} as JSON.")])
        for index in range(num_answers)
    ]
    params = [
        SamplingParams(
            temperature=0.8,
            seed=seed + index,
            max_tokens=MAX_TOKENS,
            grammar=Grammar.json_schema(schema),
        )
        for index, schema in enumerate(schemas)
    ]
    with LLM(model) as llm:
        return list(zip(schemas, llm.generate(prompts, params), strict=True))


def count_valid(answers: list[tuple[dict[str, Any], RequestOutput]]) -> int:
    """Answers that are whole and fit their schema; the others are shown."""
    num_valid = 0
    for schema, output in answers:
        try:
            jsonschema.validate(json.loads(output.text), schema)
            num_valid += output.finish_reason == "stop"
        except (ValueError, jsonschema.ValidationError) as error:
            print(f"  not valid: {output.text!r} ({output.finish_reason}): {error}")
    return num_valid


def time_masks(
    matchers: Matchers, answers: list[tuple[dict[str, Any], RequestOutput]]
) -> tuple[list[float], list[float], list[bytes]]:
    """Microseconds per mask and per first use of a schema, and some masks."""
    mask_us, start_us, masks = [], [], []
    for schema, output in answers:
        began = time.perf_counter()
        matcher = matchers.start(Grammar.json_schema(schema))
        start_us.append((time.perf_counter() - began) * 1e6)
        for token in output.token_ids[:-1]:
            began = time.perf_counter()
            matcher.consume_token(token)
            mask = matcher.compute_bitmask()
            mask_us.append((time.perf_counter() - began) * 1e6)
            masks.append(mask)
    return mask_us, start_us, masks


def time_rows(vocab_size: int, masks: list[bytes]) -> tuple[list[float], list[float]]:
    """Microseconds of one row in the native kernel, without and with its mask."""
    logits = np.random.default_rng(1).normal(0, 3, vocab_size).astype(np.float32)
    record = bytearray(parameters.SAMPLING_BYTES)
    parameters.pack(SamplingParams(temperature=0.8, seed=1), (), 1, memoryview(record))
    plain_us, masked_us = [], []
    for mask in masks[:2000]:
        for taken_us, given in ((plain_us, None), (masked_us, mask.ljust(vocab_size // 8 + 8))):
            began = time.perf_counter()
            _native.sample_row(logits, record, b"", 0, 0, given)
            taken_us.append((time.perf_counter() - began) * 1e6)
    return plain_us, masked_us


def show(what: str, taken_us: list[float]) -> None:
    """One line of the report."""
    p50, p99 = np.percentile(taken_us, [50, 99])
    print(f"{what:24} p50 {p50:7.1f}  p99 {p99:7.1f}  max {max(taken_us):8.1f} µs")


def main() -> None:
    """Ask, check, time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--answers", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    answers = ask(options.model, options.answers, options.seed)
    num_tokens = sum(len(output.token_ids) for _, output in answers)
    print(f"{count_valid(answers)} of {len(answers)} valid, {num_tokens} tokens")
    config: Config = config_from_options({"model": options.model})
    info = inspect_model(options.model, config)
    began = time.perf_counter()
    matchers = Matchers(build_vocabulary(info.tokenizer), info.config.eos_ids)
    print(f"trie of {info.config.vocab_size} tokens: {(time.perf_counter() - began) * 1e3:.0f} ms")
    mask_us, start_us, masks = time_masks(matchers, answers)
    show("mask per token", mask_us)
    show("schema, first time", start_us[: len(SCHEMAS)])
    show("schema, again", start_us[len(SCHEMAS) :] or start_us)
    plain_us, masked_us = time_rows(info.config.vocab_size, masks)
    show("row without a mask", plain_us)
    show("row with its mask", masked_us)


if __name__ == "__main__":
    main()
