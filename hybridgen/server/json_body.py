"""A JSON body → a struct, strictly.

What other parsers let pass is refused: repeated keys (which of the two was meant?), unknown keys,
NaN and infinities, a byte order mark, half a surrogate pair, the character NUL, endless nesting.
The struct's types come first, so that a body of the wrong shape costs next to nothing. One that is
acceptable otherwise, and so not too large, is read a second time (``check_keys``) for what the
first reading cannot see.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.shape_fault import ShapeFault
from hybridgen.tool import nests_deeper

_Body = TypeVar("_Body", bound=msgspec.Struct)

#: Of a text from outside, this much may stand in an error.
MAX_SHOWN_CHARS = 80
#: Larger bodies that are no JSON are not searched for the key to blame.
_MAX_SEARCHED_BYTES = 2**16


def decode_body(body: bytes, shape: type[_Body], max_depth: int) -> _Body:
    """``body`` as a ``shape``; ``check_keys`` is still to be asked.

    Raises:
        InvalidRequest: naming the key where there is one to blame.
    """
    _check_utf8(body)
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise _misshapen(ShapeFault.of(error)) from None
    except msgspec.DecodeError as error:
        raise _malformed(str(error), _key_of_constant(body)) from None
    except RecursionError:
        raise _too_deep(max_depth) from None


def check_keys(body: bytes, max_depth: int) -> None:
    """Refuse repeated keys, NUL in a text and nesting, in a body that was decoded before.

    Raises:
        InvalidRequest: naming the key where there is one to blame.
    """
    try:
        keys = _read_keys(body.decode())
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError as error:
        raise _malformed(str(error), None) from None
    # A short body cannot nest more than it has brackets, and most have few.
    if body.count(b"[") + body.count(b"{") > max_depth and nests_deeper(keys, max_depth):
        raise _too_deep(max_depth)
    if b"\\u0000" in body:
        _check_text(keys)


def _check_utf8(body: bytes) -> None:
    """A key that is kept as it was written is not decoded with the body, so all of it is here."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"byte {error.start} is not UTF-8: {error.reason}", None) from None


def shown(text: str) -> str:
    """``text`` as an error may quote it: short, and on one line."""
    cut = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)


def is_unknown_key(error: msgspec.ValidationError) -> bool:
    """Whether nothing but a key that is not known was found wrong."""
    return bool(ShapeFault.of(error).unknown_key)


def _misshapen(fault: ShapeFault) -> InvalidRequest:
    path = fault.path.removeprefix(".").replace("[...]", "")
    key = fault.unknown_key or fault.missing_key
    param = shown(".".join(part for part in (path, key) if part))
    if fault.unknown_key:
        return InvalidRequest(
            f"the parameter {param} is not known",
            param=param,
            remedy="Leave it out, or see the API description for the parameters",
        )
    if fault.missing_key:
        return InvalidRequest(f"the parameter {param} is missing", param=param)
    return InvalidRequest(
        f"{param or 'the body'} is not acceptable: {shown(fault.problem)}",
        param=param or None,
        remedy="See the API description for the type and the range of each parameter",
    )


def _malformed(problem: str, param: str | None) -> InvalidRequest:
    return InvalidRequest(
        f"the body is not valid JSON: {shown(problem)}",
        param=param,
        remedy="Send one JSON object in UTF-8; JSON knows neither NaN nor Infinity",
    )


def _too_deep(max_depth: int) -> InvalidRequest:
    return InvalidRequest(
        "the body is nested too deeply", limit=max_depth, remedy="Send a flatter object"
    )


def _key_of_constant(body: bytes) -> str | None:
    """The key that holds NaN or an infinity, which JSON does not have but many writers do."""
    if len(body) > _MAX_SEARCHED_BYTES or not (b"NaN" in body or b"Infinity" in body):
        return None
    try:
        keys = json.loads(body, parse_constant=_Constant)
        return _key_holding(keys, lambda value: isinstance(value, _Constant))
    except (ValueError, RecursionError):  # it is no JSON in other ways too
        return None


class _Constant(str):
    """A word that stands where a number should."""

    __slots__ = ()


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for ``json.loads``.

    Raises:
        InvalidRequest: naming the key that stands there twice.
    """
    keys = dict(pairs)
    if len(keys) == len(pairs):
        return keys
    seen: set[str] = set()
    twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    raise InvalidRequest(
        f"the key {shown(twice)} stands in an object more than once",
        param=shown(twice),
        remedy="Give each key once",
    )


#: As ``json.loads`` would make it anew for every body.
_read_keys = json.JSONDecoder(object_pairs_hook=unique_keys).decode


def _check_text(keys: Any) -> None:
    key = _key_holding(keys, lambda value: isinstance(value, str) and "\0" in value)
    if key is not None:
        raise InvalidRequest(
            "a text holds the character NUL", param=key, value="U+0000", remedy="Leave it out"
        )


def _key_holding(keys: Any, is_wanted: Callable[[Any], bool]) -> str | None:
    """The first outermost key with something wanted in it."""
    if not isinstance(keys, dict):
        return None
    return next(
        (shown(key) for key, value in keys.items() if _holds((key, value), is_wanted)), None
    )


def _holds(value: Any, is_wanted: Callable[[Any], bool]) -> bool:
    if isinstance(value, dict):
        value = value.items()
    elif not isinstance(value, list | tuple):
        return is_wanted(value)
    return any(_holds(inner, is_wanted) for inner in value)
