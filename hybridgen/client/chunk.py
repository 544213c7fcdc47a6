"""The piece of a stream that a user sees."""

from __future__ import annotations

import msgspec

from hybridgen.request import TokenLogprob


class StreamChunk(msgspec.Struct, frozen=True, gc=False):
    """New text of one request, together with the tokens it came from.

    Text that is held back (half a character, the possible start of a stop string) holds its
    tokens back, so joining all chunks gives exactly the text and ids of the finished request.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
