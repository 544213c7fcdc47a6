"""Command-line options for how tokens are chosen, made from ``SamplingParams``."""

from __future__ import annotations

import inspect
import typing
from typing import Annotated, Any, Optional

import msgspec
import typer

from hybridgen import request as request_module
from hybridgen.errors import InvalidRequest
from hybridgen.launch.config_fields import field_docs
from hybridgen.request import SamplingParams

#: Those that make sense for a person at a terminal.
OFFERED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
)
#: Other names for the same.
ALIASES = {"max_tokens": ["--max-new-tokens", "-n"]}
STOP = "stop"
#: For an option in ``arguments`` that was not given.
_KEY = "sampling_{}"


def parameters() -> list[inspect.Parameter]:
    """Signature parameters for typer, all keyword-only and None when not given."""
    docs = field_docs(request_module)
    found = []
    for name in (*OFFERED, STOP):
        kind: Any = Optional[list[str]] if name == STOP else Optional[str]  # noqa: UP045  # typer reads it
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            *ALIASES.get(name, []),
            help=docs["SamplingParams", name],
            metavar="TEXT" if name == STOP else "NUMBER",
            show_default=False,
        )
        found.append(
            inspect.Parameter(
                _KEY.format(name),
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind, option],
            )
        )
    return found


def take(arguments: dict[str, Any], defaults: SamplingParams) -> SamplingParams:
    """Remove the options from ``arguments`` and lay them over ``defaults``.

    Raises:
        InvalidRequest: a value is no number, or out of range.
    """
    given: dict[str, Any] = {}
    hints = typing.get_type_hints(SamplingParams)
    for name in OFFERED:
        text = arguments.pop(_KEY.format(name))
        if text is not None:
            given[name] = _number(name, text, hints[name])
    stops = arguments.pop(_KEY.format(STOP))
    params = msgspec.structs.replace(defaults, **given, stop=tuple(stops or ()))
    params.validate()
    return params


def _number(name: str, text: str, kind: Any) -> int | float | None:
    try:
        number: int | float | None = msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        raise InvalidRequest(
            f"{name} is not a number of its kind",
            param=name,
            value=text,
            limit=getattr(kind, "__name__", str(kind)),
            remedy=f"Give --{name.replace('_', '-')} a number",
        ) from None
    return number
