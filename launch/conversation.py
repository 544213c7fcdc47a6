"""A conversation at the terminal: the messages so far and the next answer."""

from __future__ import annotations

import sys

from hybridgen.client.client import Client
from hybridgen.launch.answer import Speed, stream_answer
from hybridgen.request import SamplingParams


class Conversation:
    """Grows by a question and its answer at a time.

    Args:
        client: attached to a tree.
        params: how tokens are chosen.
        system: first message, if any.
    """

    def __init__(self, client: Client, params: SamplingParams, system: str | None) -> None:
        self._client = client
        self._params = params
        self._messages = [{"role": "system", "content": system}] if system is not None else []

    def ask(self, question: str) -> Speed:
        """Stream the answer to ``question`` and its speed, and remember both texts.

        Raises:
            HybridGenError: what ended the request; the conversation is as before.
        """
        asked = [*self._messages, {"role": "user", "content": question}]
        text, speed = stream_answer(self._client, asked, self._params)
        self._messages = [*asked, {"role": "assistant", "content": text}]
        print(f"[{speed}]", file=sys.stderr)
        return speed
