"""Conversations are many and their shapes few: remembers what a template made of the latest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from hybridgen.text.conversation import Conversation

#: Together they bound the memory.
MAX_SHAPES, MAX_MESSAGES, MAX_CHARS = 256, 32, 1024

_Items = tuple[tuple[str, str], ...]


class ShapeCache:
    """Renders conversations, each short one once as long as it is remembered.

    With stand-ins for what people wrote most conversations are alike. Those with tools, calls or
    variables are rendered every time.

    Args:
        render: gives the same text for the same conversation, always.
    """

    def __init__(self, render: Callable[[Conversation], str]) -> None:
        self._render = render
        self._remembered = lru_cache(MAX_SHAPES)(self._render_items)

    def render(self, turns: Conversation) -> str:
        """The text of ``turns``.

        Raises:
            InvalidRequest: as ``render`` does.
        """
        if turns.tools or turns.template_kwargs or len(turns.messages) > MAX_MESSAGES:
            return self._render(turns)
        num_chars = 0
        for message in turns.messages:
            for value in message.values():
                num_chars += len(value) if isinstance(value, str) else MAX_CHARS + 1
        if num_chars > MAX_CHARS:
            return self._render(turns)
        return self._remembered(tuple([tuple(message.items()) for message in turns.messages]))

    def _render_items(self, messages: Iterable[_Items]) -> str:
        views: list[dict[str, Any]] = [dict(message) for message in messages]
        return self._render(Conversation(views))
