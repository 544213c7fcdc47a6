"""One streamed answer on a terminal, with its speed."""

from __future__ import annotations

import sys
from typing import NamedTuple

from hybridgen.client.client import Client
from hybridgen.clock import monotonic_s
from hybridgen.request import PromptLike, SamplingParams


class Speed(NamedTuple):
    """How fast an answer came."""

    num_tokens: int
    first_token_s: float
    """From the order to the first text."""
    total_s: float
    num_first_tokens: int = 1
    """Tokens that came with the first text."""
    is_cut: bool = False
    """Ctrl-C ended it."""

    def __str__(self) -> str:
        num_later, later_s = self.num_tokens - self.num_first_tokens, self.total_s
        if num_later > 0:
            later_s -= self.first_token_s
        else:  # all came at once: only the whole can be timed
            num_later = self.num_tokens
        rate = num_later / later_s if later_s > 0 else 0.0
        return (
            f"{self.num_tokens} tokens, {rate:.1f} tokens/s, "
            f"first token after {self.first_token_s:.3f} s"
        )


def stream_answer(client: Client, prompt: PromptLike, params: SamplingParams) -> tuple[str, Speed]:
    """Print the answer as it comes; Ctrl-C cancels it and keeps what has come.

    Returns:
        The whole text, and the speed.

    Raises:
        HybridGenError: what ended the request.
    """
    started_s = monotonic_s()
    first_s = last_s = 0.0
    num_tokens = num_first = 0
    is_cut = False
    parts: list[str] = []
    with client.submit(prompt, params) as stream:
        try:
            for chunk in stream:
                last_s = monotonic_s() - started_s
                first_s = first_s or last_s
                num_tokens += len(chunk.token_ids)
                num_first = num_first or num_tokens
                parts.append(chunk.text)
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            is_cut = True
            stream.cancel()
    sys.stdout.write("\n")
    sys.stdout.flush()
    return "".join(parts), Speed(num_tokens, first_s, last_s, num_first, is_cut)
