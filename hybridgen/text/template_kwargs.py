"""Variables that a request gives its chat template: ``chat_template_kwargs``, as vLLM calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hybridgen.errors import InvalidRequest
from hybridgen.tool import nests_deeper

PARAM = "chat_template_kwargs"
MAX_VARIABLES = 64
MAX_BYTES = 16_384
MAX_DEPTH = 8
#: What a message between processes can carry as an integer; of other numbers as much.
MIN_NUMBER, MAX_NUMBER = -(2**63), 2**64 - 1
NAME_PATTERN = r"[A-Za-z][A-Za-z0-9_]{0,63}"
_NAME = re.compile(NAME_PATTERN)
#: What a template is given by the server alone.
RESERVED = (
    "add_generation_prompt", "bos_token", "eos_token", "messages", "raise_exception",
    "strftime_now", "tools",
)  # fmt: skip


def check_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Refuse what no template needs.

    Raises:
        InvalidRequest: a name that is none or is taken, too many of them, too much JSON, or a
            number that is too large.
    """
    if not kwargs:
        return
    for name in kwargs:
        if not _NAME.fullmatch(name) or name in RESERVED:
            raise InvalidRequest(
                "a variable for the chat template has a name that cannot be given",
                param=PARAM,
                value=ascii(name[:64]),
                limit=f"{NAME_PATTERN}, and none of {', '.join(RESERVED)}",
                remedy="Use the name that the template knows",
            )
    _check_most("variables", len(kwargs), MAX_VARIABLES)
    if nests_deeper(dict(kwargs), MAX_DEPTH):
        raise _too_much("levels of objects and arrays", f"more than {MAX_DEPTH}", MAX_DEPTH)
    try:
        num_bytes = len(json.dumps(kwargs, allow_nan=False, default=_refuse))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the variables for the chat template are no JSON: {error}",
            param=PARAM,
            remedy="Give texts, numbers, booleans, null, and arrays and objects of them",
        ) from None
    _check_most("bytes of JSON", num_bytes, MAX_BYTES)
    for number in _numbers(kwargs):
        if not MIN_NUMBER <= number <= MAX_NUMBER:
            raise InvalidRequest(
                "a number for the chat template is too large",
                param=PARAM,
                value=_size(number),
                limit="−2⁶³ … 2⁶⁴ − 1",
                remedy="Give it as a text",
            )


def _size(number: float) -> str:
    """The number, or what it takes: of an integer the decimals might be too many to write."""
    return f"{number:.3e}" if isinstance(number, float) else f"{number.bit_length()} bits"


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(item)


def _refuse(value: object) -> None:
    raise TypeError(type(value).__name__)


def _check_most(what: str, count: int, most: int) -> None:
    if count > most:
        raise _too_much(what, count, most)


def _too_much(what: str, value: int | str, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"{PARAM} has too many {what}",
        param=PARAM,
        value=value,
        limit=limit,
        remedy="Give less",
    )
