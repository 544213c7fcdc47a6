"""A SentencePiece model small enough to train in a test, with Llama's settings."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceTrainer

_SENTENCE = (
    "the quick brown fox jumps over lazy dog hello world naïve café über 日本 語 code return"
)
WORDS = _SENTENCE.split()


def train_sentencepiece(folder: Path, **settings: Any) -> Path:
    source = random.Random(1)
    lines = [" ".join(source.choices(WORDS, k=8)) for _ in range(300)]
    options = {
        "model_type": "bpe",
        "vocab_size": 400,
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
        "character_coverage": 1.0,
    }
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "tiny"),
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **(options | settings),
    )
    return folder / "tiny.model"
