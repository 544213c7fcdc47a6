"""The right answers, computed beside the tree: the mock engine and the sampler's oracle.

Nothing is shared with the tree but the mock engine itself: the tokens come from the plain numpy
sampler, one whole context at a time, with no ring, no slot and no process in between.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from hybridgen.config import Config
from hybridgen.formats.inspect import inspect_model
from hybridgen.launch.chaos.history import Golden, Question
from hybridgen.models.engine import IntArray
from hybridgen.models.mock import MockEngine
from hybridgen.request import SamplingParams, TextPrompt
from hybridgen.sampling import reference
from hybridgen.text.prompt_encoder import build_prompt_encoder
from hybridgen.text.vocabulary import build_vocabulary

#: Tokens of an answer.
MIN_TOKENS, MAX_TOKENS = 60, 160
_WORDS = (
    "kill",
    "the",
    "sampler",
    "every",
    "stream",
    "goes",
    "on",
    "as",
    "if",
    "nothing",
    "日本",
    "🙂",
)


def make_questions(num_questions: int, seed: int) -> list[Question]:
    """Questions that differ in everything; the same ones for the same seed."""
    chance = random.Random(seed)
    return [_question(number, chance) for number in range(num_questions)]


def _question(number: int, chance: random.Random) -> Question:
    words = " ".join(chance.choices(_WORDS, k=chance.randrange(4, 20)))
    max_tokens = chance.randrange(MIN_TOKENS, MAX_TOKENS)
    params = SamplingParams(
        temperature=chance.choice((0.0, 0.7, 1.0)),
        top_p=chance.choice((1.0, 0.95)),
        top_k=chance.choice((0, 0, 40)),
        repetition_penalty=chance.choice((1.0, 1.1)),
        seed=chance.randrange(2**32),
        max_tokens=max_tokens,
        min_tokens=max_tokens if chance.random() < 0.75 else 10,
    )
    return Question(f"{number}: {words}?", params)


@dataclass
class _Row:
    """An answer in the making."""

    params: SamplingParams
    prompt: list[int]
    blocks: IntArray
    ids: list[int] = field(default_factory=list)
    reason: str = ""


def goldens(questions: list[Question], config: Config) -> list[Golden]:
    """The answer to each question by a tree of the mock model with ``config``."""
    info = inspect_model("mock", config)
    encoder = build_prompt_encoder(info.tokenizer, config.model.chat_template)
    block_size = config.device.block_size
    rows: list[_Row] = []
    num_blocks = 0
    for question in questions:
        prompt = encoder.encode(TextPrompt(question.prompt))
        count = -(-(len(prompt) + (question.params.max_tokens or 0)) // block_size)
        blocks = np.arange(num_blocks, num_blocks + count, dtype=np.int32)
        num_blocks += count
        rows.append(_Row(question.params, prompt, blocks))
    vocab_size, eos_ids = info.config.vocab_size, info.config.eos_ids
    engine = MockEngine(
        vocab_size,
        num_blocks,
        eos_id=eos_ids[0],
        eos_bias=config.mock.mock_eos_bias,
        block_size=block_size,
    )
    _prefill(engine, rows, eos_ids)
    while open_rows := [row for row in rows if not row.reason]:
        _decode(engine, open_rows, eos_ids)
    vocabulary = build_vocabulary(info.tokenizer)
    return [
        Golden(row.ids, vocabulary.decode(row.ids), row.reason, len(row.prompt)) for row in rows
    ]


def _prefill(engine: MockEngine, rows: list[_Row], eos_ids: list[int]) -> None:
    logits = np.zeros(engine.vocab_size, np.float32)
    for row in rows:
        engine.prefill(np.asarray(row.prompt, np.int32), 0, row.blocks, logits)
        _take(row, logits, eos_ids)


def _decode(engine: MockEngine, rows: list[_Row], eos_ids: list[int]) -> None:
    tables = np.zeros((len(rows), max(len(row.blocks) for row in rows)), np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.blocks)] = row.blocks
    positions = [len(row.prompt) + len(row.ids) - 1 for row in rows]
    logits = np.zeros((len(rows), engine.vocab_size), np.float32)
    last_ids = np.asarray([row.ids[-1] for row in rows], np.int32)
    engine.decode(last_ids, np.asarray(positions, np.int32), tables, logits)
    for row, row_logits in zip(rows, logits, strict=True):
        _take(row, row_logits, eos_ids)


def _take(row: _Row, logits: reference.Floats, eos_ids: list[int]) -> None:
    """The next token of ``row``, and whether it is the last."""
    history = row.prompt + row.ids
    choice = reference.sample(logits, row.params, eos_ids, history, len(row.prompt))
    if choice.token_id is None:
        row.reason = "error"
        return
    row.ids.append(choice.token_id)
    if choice.token_id in eos_ids:
        row.reason = "stop"
    elif len(row.ids) == row.params.max_tokens:
        row.reason = "length"
