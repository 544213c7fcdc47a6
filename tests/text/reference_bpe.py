"""Byte-level BPE by its definition, slow and plain: the oracle for the rebuilt tokenizers."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import regex

from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.byte_alphabet import BYTE_TO_CHAR
from hybridgen.text.split_rules import SPLIT_RULES


class ReferenceBpe:
    """Of a vocabulary in lists."""

    def __init__(self, spec: TokenizerSpec) -> None:
        types = spec.token_types or [TokenType.NORMAL] * len(spec.tokens)
        self._ids = {
            token: token_id
            for token_id, token in enumerate(spec.tokens)
            if types[token_id] == TokenType.NORMAL
        }
        self._ranks = {
            tuple(merge.split(" ")): rank for rank, merge in reversed([*enumerate(spec.merges)])
        }
        self._rule = SPLIT_RULES[spec.pre_tokenizer]
        self._patterns = [regex.compile(f"({pattern})") for pattern in self._rule.patterns]
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if self._rule.is_composed:
            text = unicodedata.normalize("NFC", text)
        return [token_id for word in self._words(text) for token_id in self._word_ids(word)]

    def _words(self, text: str) -> list[str]:
        pieces = [text]
        for pattern in self._patterns:
            pieces = [part for piece in pieces for part in pattern.split(piece) if part]
        return pieces

    def _word_ids(self, word: str) -> list[int]:
        if word not in self._known:
            self._known[word] = self._merge([BYTE_TO_CHAR[value] for value in word.encode()])
        return self._known[word]

    def _merge(self, parts: list[str]) -> list[int]:
        if self._rule.takes_whole_pieces and "".join(parts) in self._ids:
            return [self._ids["".join(parts)]]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            index = pairs.index(best)
            parts[index : index + 2] = ["".join(best)]
        return [self._ids[part] for part in parts if part in self._ids]
