"""How far a stream has been shown: cuts repeats, notices gaps."""

from __future__ import annotations

from hybridgen.client.chunk import StreamChunk
from hybridgen.messages import TextDelta


class TextCursor:
    """Counts the tokens and characters of one request that were shown.

    Both offsets of a delta are checked, because a detokenizer that replaced another may cut the
    same text into other pieces.
    """

    __slots__ = ("num_chars", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_chars = 0

    def is_gap(self, delta: TextDelta) -> bool:
        """Whether something between the text shown and ``delta`` is missing."""
        return delta.token_offset > self.num_tokens or delta.char_offset > self.num_chars

    def take(self, delta: TextDelta) -> StreamChunk | None:
        """What ``delta`` adds to the text shown; ``None`` when all of it was shown before.

        ``delta`` must not be a gap.
        """
        skip_tokens = self.num_tokens - delta.token_offset
        skip_chars = self.num_chars - delta.char_offset
        ids, text, logprobs = delta.token_ids, delta.text, delta.logprobs
        if skip_tokens:
            ids = ids[skip_tokens:]
            logprobs = logprobs[skip_tokens:] if logprobs is not None else None
        if skip_chars:
            text = text[skip_chars:]
        if not ids and not text:
            return None
        self.num_tokens += len(ids)
        self.num_chars += len(text)
        return StreamChunk(text, ids, logprobs)
