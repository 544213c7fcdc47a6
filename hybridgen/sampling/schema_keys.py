"""What a JSON schema may say here: keywords that are followed, and those that say nothing.

Any other keyword is refused by its name. A validator would ignore what it does not know; a text
that was promised to fit a schema would then not fit what its author meant.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from hybridgen.errors import InvalidRequest
from hybridgen.request import Grammar

_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_SINGLE = frozenset({"items", "additionalItems", "additionalProperties"})
_FOLLOWED = frozenset(
    {
        *("$ref", "const", "enum", "type", "required", "minItems", "maxItems"),
        *("minProperties", "maxProperties", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
_ANNOTATIONS = frozenset(
    {
        *("$anchor", "$schema", "$id", "id", "$comment", "title", "description", "default"),
        *("examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("contentMediaType", "contentEncoding", "x-guidance"),
    }
)
_KNOWN = _OF_SCHEMAS | _LISTS | _SINGLE | _FOLLOWED | _ANNOTATIONS
#: The lexer has a state for each remainder of multipleOf.
MAX_REMAINDERS = 10_000


def read_schema(grammar: Grammar) -> dict[str, Any]:
    """The schema of a grammar of kind json_schema; one that is ``true`` or ``false`` as an object.

    Raises:
        InvalidRequest: it is none, or says what cannot be followed.
    """
    try:
        schema = json.loads(grammar.text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the JSON schema cannot be read: {error}",
            param=grammar.param,
            remedy="Give a JSON schema as JSON",
        ) from None
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if isinstance(schema, dict):
        check_schema(schema, grammar.param)
        return schema
    raise InvalidRequest(
        "a JSON schema must be an object",
        param=grammar.param,
        value=type(schema).__name__,
        remedy="Give a JSON schema",
    )


def _finite(number: str) -> float:
    value = float(number)
    if math.isfinite(value):
        return value
    raise ValueError(f"{number} is no number that JSON can hold")


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Refuse what cannot be followed, wherever it stands in ``schema``.

    Raises:
        InvalidRequest: naming ``param`` and, as the value, the place.
    """
    waiting: list[tuple[str, Any]] = [("$", schema)]
    multiples: set[Decimal] = set()
    while waiting:
        path, one = waiting.pop()
        if not isinstance(one, dict):
            continue  # true and false are schemas too; what is none is refused by the compiler
        for key in one:
            if key not in _KNOWN:
                raise _unsupported(f"{path}.{key}", key, param)
        multiple = one.get("multipleOf")
        if isinstance(multiple, int | float):
            multiples.add(Decimal(str(multiple)))
        waiting += _inner(path, one)
    _check_multiples(multiples, param)


def _inner(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        place = f"{path}.{key}"
        if key in _OF_SCHEMAS and isinstance(value, dict):
            yield from ((f"{place}.{name}", inner) for name, inner in value.items())
        elif key in _LISTS and isinstance(value, list):
            yield from ((f"{place}[{index}]", inner) for index, inner in enumerate(value))
        elif key in _SINGLE:
            yield place, value


def _check_multiples(multiples: set[Decimal], param: str) -> None:
    # Whatever parts of the schema come together, one text has at most so many remainders.
    num_remainders = math.prod(_coefficient(multiple) for multiple in multiples)
    if num_remainders > MAX_REMAINDERS:
        raise InvalidRequest(
            "multipleOf cannot be followed: too many remainders",
            param=param,
            value=", ".join(f"{multiple:f}" for multiple in sorted(multiples)),
            limit=MAX_REMAINDERS,
            remedy="Leave it out, or use smaller or fewer ones",
        )


def _coefficient(multiple: Decimal) -> int:
    """Its digits without the zeros at the end: powers of ten cost nothing."""
    return int("".join(map(str, multiple.normalize().as_tuple().digits))) or 1


def _unsupported(place: str, key: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"the JSON schema keyword {key!a} is not supported",
        param=param,
        value=ascii(place)[1:-1],
        remedy="Leave it out, or say it with other keywords; see docs/structured-output.md",
    )
