from __future__ import annotations

from typing import Any

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.text.conversation import Conversation
from hybridgen.text.shape_cache import MAX_CHARS, MAX_MESSAGES, MAX_SHAPES, ShapeCache


class Renderer:
    """Shows what it is given, and counts."""

    def __init__(self) -> None:
        self.num_renders = 0

    def render(self, turns: Conversation) -> str:
        self.num_renders += 1
        return repr(turns)


def _turns(*contents: str, **keys: Any) -> Conversation:
    return Conversation([{"role": "user", "content": content, **keys} for content in contents])


def test_the_same_conversation_is_rendered_once() -> None:
    renderer = Renderer()
    cache = ShapeCache(renderer.render)
    for turns in (_turns("a"), _turns("a"), _turns("b"), _turns("a", "b"), _turns("a", name="b")):
        assert cache.render(turns) == repr(turns)
    assert renderer.num_renders == 4


@pytest.mark.parametrize(
    "turns",
    [
        _turns("x" * MAX_CHARS),
        _turns(*["x"] * (MAX_MESSAGES + 1)),
        _turns("a", tool_calls=[{"id": "1"}]),
        _turns("a")._replace(tools=[{"type": "function"}]),
        _turns("a")._replace(template_kwargs={"a": 1}),
    ],
)
def test_what_is_long_or_more_than_messages_is_rendered_each_time(turns: Conversation) -> None:
    renderer = Renderer()
    cache = ShapeCache(renderer.render)
    assert cache.render(turns) == cache.render(turns) == repr(turns)
    assert renderer.num_renders == 2


def test_the_oldest_is_forgotten() -> None:
    renderer = Renderer()
    cache = ShapeCache(renderer.render)
    for index in range(MAX_SHAPES + 1):
        cache.render(_turns(f"{index}"))
    cache.render(_turns("0"))
    assert renderer.num_renders == MAX_SHAPES + 2


def test_a_refusal_is_not_remembered() -> None:
    def refuse(turns: Conversation) -> str:
        raise InvalidRequest(f"not {turns.messages[0]['content']}")

    cache = ShapeCache(refuse)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="not a"):
            cache.render(_turns("a"))
