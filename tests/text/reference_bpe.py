"""Byte-level BPE by its definition, slow and plain: the oracle for the rebuilt tokenizers."""

from __future__ import annotations

from itertools import pairwise

import regex

from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.byte_alphabet import BYTE_TO_CHAR

GPT2_SPLIT = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


class ReferenceBpe:
    def __init__(self, spec: TokenizerSpec, has_single_digits: bool) -> None:
        self._ids = {
            token: token_id
            for token_id, token in enumerate(spec.tokens)
            if spec.token_types[token_id] == TokenType.NORMAL
        }
        self._ranks = {
            tuple(merge.split(" ")): rank for rank, merge in reversed([*enumerate(spec.merges)])
        }
        self._has_single_digits = has_single_digits

    def encode(self, text: str) -> list[int]:
        return [token_id for word in self._words(text) for token_id in self._merge(word)]

    def _words(self, text: str) -> list[str]:
        pieces = [text]
        if self._has_single_digits:
            pieces = [piece for piece in regex.split(r"(\p{N})", text) if piece]
        return [word for piece in pieces for word in GPT2_SPLIT.findall(piece)]

    def _merge(self, word: str) -> list[int]:
        parts = [BYTE_TO_CHAR[value] for value in word.encode()]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            index = pairs.index(best)
            parts[index : index + 2] = ["".join(best)]
        return [self._ids[part] for part in parts if part in self._ids]
