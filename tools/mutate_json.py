"""Damage to JSON by what it means: values of another kind, keys twice, nesting, hostile texts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.mutate_bytes import (
    HOSTILE_INTEGERS,
    HOSTILE_REALS,
    HOSTILE_TEMPLATES,
    HOSTILE_TEXTS,
    NAN,
)

_DEEP = 100_000
_LONG = 20_000
_PLAIN = (str, float, bool, type(None))


class Pairs(list[tuple[str, Any]]):
    """An object, whose keys may stand twice."""


class RawText(str):
    """Written as it stands."""

    __slots__ = ()


#: What no value of Python could say, or not as quickly.
_HOSTILE_TEXT = (
    *(RawText("1e400"), RawText("-Infinity"), RawText("01"), RawText('"\\ud800"')),
    *(RawText("[" * _DEEP + "]" * _DEEP), RawText('{"a":' * 5000 + "1" + "}" * 5000)),
    *(RawText(f"[0{', 0' * _LONG}]"), RawText(f'["x"{", 1" * _LONG}]')),
)


class _Place(NamedTuple):
    """An entry of an object or a list."""

    path: str
    parent: Any  # Pairs or list
    position: int

    @property
    def value(self) -> Any:
        entry = self.parent[self.position]
        return entry[1] if isinstance(self.parent, Pairs) else entry

    def put(self, value: Any) -> None:
        if isinstance(self.parent, Pairs):
            value = (self.parent[self.position][0], value)
        self.parent[self.position] = value


def mutate_json(text: str, dice: random.Random) -> tuple[str, str]:
    """One damage; what it was, and the new text.

    Raises:
        ValueError: ``text`` is no JSON.
    """
    root = json.loads(text, object_pairs_hook=Pairs)
    place = _draw(root, dice)
    if place is None:
        return "whole content replaced", write_json(hostile_value(dice))
    what = _damage(place, dice)
    return f"{place.path or 'root'} {what}", write_json(root)


def hostile_value(dice: random.Random, like: Any = None) -> Any:
    """A value that hardly anybody expects; of ``like``'s own kind half the time."""
    if dice.random() < 0.5:
        match like:
            case bool():
                return not like
            case int():
                near = (like + 1, like - 1, -like, 2 * like, like // 2)
                return dice.choice((*near, *HOSTILE_INTEGERS, -1, 10**400))
            case float():
                return dice.choice((*HOSTILE_REALS, NAN, -like))
            case str():
                return _hostile_text(dice, like)
            case list():
                return _hostile_list(dice, like)
    values: tuple[Any, ...] = (
        *(None, True, False, -1, 0.5, NAN, "5", [], [[]], Pairs(), Pairs([("a", Pairs())])),
        *(dice.choice(HOSTILE_INTEGERS), dice.choice(HOSTILE_REALS), -(2**63) - 1, 10**400),
        dice.choice(HOSTILE_TEXTS),
        *_HOSTILE_TEXT,
    )
    return dice.choice(values)


def write_json(value: Any) -> str:
    """JSON text, with whatever JSON does not allow."""
    return "".join(_written(value))


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, RawText):
        yield value
    elif isinstance(value, Pairs):
        yield "{"
        for index, (key, item) in enumerate(value):
            yield f"{', ' if index else ''}{json.dumps(key)}: "
            yield from _written(item)
        yield "}"
    elif isinstance(value, list) and all(type(item) in _PLAIN for item in value):
        yield json.dumps(value)
    elif isinstance(value, list):
        yield "["
        for index, item in enumerate(value):
            if index:
                yield ", "
            yield from _written(item)
        yield "]"
    elif isinstance(value, int) and not isinstance(value, bool):
        yield "1" + "0" * 400 if value == 10**400 else str(value)
    else:
        yield json.dumps(value)


def _draw(root: Any, dice: random.Random) -> _Place | None:
    """An entry, by a walk from the root: however long a list is, the others are as likely."""
    place, path, here = None, "", root
    while isinstance(here, list) and here:
        if place is not None and dice.random() < 0.35:
            break
        index = dice.randrange(len(here))
        path += f".{here[index][0]}" if isinstance(here, Pairs) else f"[{index}]"
        place = _Place(path[:200], here, index)
        here = place.value
    return place


def _damage(place: _Place, dice: random.Random) -> str:
    parent, index = place.parent, place.position
    match dice.randrange(10):
        case 0:
            del parent[index]
            return "deleted"
        case 1 if isinstance(parent, Pairs):
            parent.append((parent[index][0], hostile_value(dice, place.value)))
            return "stands twice"
        case 1:
            parent.insert(index, parent[index])
            return "repeated"
        case 2 if isinstance(parent, Pairs):
            parent[index] = (dice.choice((*HOSTILE_TEXTS, "type", "a")), place.value)
            return "renamed"
        case 3:
            other = dice.randrange(len(parent))
            place.put(_Place("", parent, other).value)
            return f"set to entry {other}"
        case _:
            value = hostile_value(dice, place.value)
            place.put(value)
            return f"set to {write_json(value)[:60]}"


def _hostile_text(dice: random.Random, like: str) -> str:
    if "{%" in like or dice.random() < 0.05:
        return dice.choice(HOSTILE_TEMPLATES)
    cut = dice.randrange(len(like) + 1)
    return dice.choice(
        (*HOSTILE_TEXTS, like[:cut], like + like, like[::-1], like + "\0", like.upper())
    )


def _hostile_list(dice: random.Random, like: list[Any]) -> list[Any]:
    cut = dice.randrange(len(like) + 1)
    shuffled = dice.sample(like, len(like))
    longer = like * (_LONG // 10 // len(like)) if like else [0] * _LONG
    kind = type(like)
    return dice.choice((kind(like[:cut]), kind(like + like[:cut]), kind(shuffled), kind(longer)))
