"""What a session tells its owner about an open request or question."""

from __future__ import annotations

from typing import Any

import msgspec

from hybridgen.client.chunk import StreamChunk
from hybridgen.errors import HybridGenError


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request, exactly once, after all of its text."""

    finish_reason: str
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    seed: int = 0
    error: HybridGenError | None = None


class Answer(msgspec.Struct, frozen=True):
    """The answer to a question (tokenize, health, processes, stop), or why there is none."""

    message: Any = None
    error: HybridGenError | None = None


#: (request id, what happened)
Event = tuple[bytes, StreamChunk | End | Answer]
