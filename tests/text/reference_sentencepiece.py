"""SentencePiece's BPE by its definition: the best-scored pair of neighbours is joined first."""

from __future__ import annotations

from itertools import pairwise

from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType


class ReferenceSentencePiece:
    """Of a vocabulary in lists, without user-defined pieces that text could hold."""

    def __init__(self, spec: TokenizerSpec) -> None:
        kinds = (TokenType.NORMAL, TokenType.USER_DEFINED)
        self._ids = {
            token: token_id
            for token_id, token in enumerate(spec.tokens)
            if spec.token_types[token_id] in kinds
        }
        self._scores = spec.scores
        self._bytes = {token: token_id for token_id, token in enumerate(spec.tokens)}
        self._prefix = "▁" if spec.add_space_prefix else ""

    def encode(self, text: str) -> list[int]:
        parts = list(self._prefix + text.replace(" ", "▁")) if text else []
        scores = [self._score(left + right) for left, right in pairwise(parts)]
        while scores and (best := max(scores)) > -float("inf"):
            index = scores.index(best)
            parts[index : index + 2] = [parts[index] + parts[index + 1]]
            around = parts[max(0, index - 1) : index + 2]
            scores[max(0, index - 1) : index + 2] = [
                self._score(left + right) for left, right in pairwise(around)
            ]
        return [token_id for part in parts for token_id in self._part_ids(part)]

    def _score(self, piece: str) -> float:
        return self._scores[self._ids[piece]] if piece in self._ids else -float("inf")

    def _part_ids(self, part: str) -> list[int]:
        if part in self._ids:
            return [self._ids[part]]
        return [self._bytes[f"<0x{value:02X}>"] for value in part.encode()]
