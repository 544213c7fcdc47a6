"""Functions that a model may ask for, and what it asks of them.

The shapes are those of OpenAI's API, flat enough to travel: what nests without end (a schema, the
arguments of a call) travels as JSON text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hybridgen.errors import InvalidRequest
from hybridgen.shape_fault import ShapeFault

MAX_TOOLS = 128
MAX_CALLS = 128
MAX_CALL_ID_CHARS = 256
MAX_SCHEMA_DEPTH = 64
#: Not with $ at its end: in Python a line feed may follow where that matches.
NAME_PATTERN = r"^[A-Za-z0-9_-]{1,64}\Z"

FunctionName = Annotated[str, Meta(pattern=NAME_PATTERN)]
CallId = Annotated[str, Meta(min_length=1, max_length=MAX_CALL_ID_CHARS)]

_NAME = re.compile(NAME_PATTERN)
_MAX_SHOWN_KEY_CHARS = 80


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked of a function."""

    name: FunctionName
    arguments: str
    """JSON as the model wrote it, which is an object unless the model made a mistake."""


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call, in an answer or in a message that repeats it."""

    id: CallId
    function: FunctionCall
    type: Literal["function"] = "function"


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that may be called."""

    name: FunctionName
    description: str | None = None
    parameters: str | None = None
    """JSON schema of the arguments, as JSON text."""
    strict: bool = False
    """Arguments are held to the schema while they are made."""


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool; functions are the only kind."""

    function: Function
    type: Literal["function"] = "function"


class FunctionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function as users describe it."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Hold arguments to the schema while they are made."""


class ToolSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool as users describe it."""

    type: Literal["function"]
    function: FunctionSpec


def is_function_name(text: str) -> bool:
    """Whether a function may be called ``text``."""
    return _NAME.match(text) is not None


def as_tools(tools: Sequence[Mapping[str, Any] | ToolSpec | Tool]) -> list[Tool]:
    """Tools as users write them (``{"type": "function", "function": {…}}``).

    Raises:
        InvalidRequest: too many, two of one name, or malformed; ``param`` names the place.
    """
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(
            "too many tools",
            param="tools",
            value=len(tools),
            limit=MAX_TOOLS,
            remedy="Offer the ones that this conversation needs",
        )
    offered = [_as_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    seen: set[str] = set()
    for index, tool in enumerate(offered):
        if tool.function.name in seen:
            raise InvalidRequest(
                "two tools have one name",
                param=f"tools[{index}].function.name",
                value=tool.function.name,
                remedy="Give each function a name of its own",
            )
        seen.add(tool.function.name)
    return offered


def nests_deeper(value: Any, max_depth: int) -> bool:
    """Whether objects and arrays stand more than ``max_depth`` deep in a JSON value."""
    level = [value]
    for _ in range(max_depth):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one
        level = [one for one in inner if isinstance(one, dict | list | tuple)]
        if not level:
            return False
    return True


def _as_tool(tool: Mapping[str, Any] | ToolSpec | Tool, place: str) -> Tool:
    if isinstance(tool, Tool):
        return tool
    try:
        spec = msgspec.convert(tool, ToolSpec).function
    except msgspec.ValidationError as error:
        raise _malformed(ShapeFault.of(error), place) from None
    strict = bool(spec.strict)
    parameters = None
    if spec.parameters is not None:
        parameters = _schema_text(spec.parameters, f"{place}.function.parameters")
    return Tool(Function(spec.name, spec.description, parameters, strict))


def _schema_text(schema: dict[str, Any], place: str) -> str:
    reason = f"nested more than {MAX_SCHEMA_DEPTH} deep"
    try:
        if not nests_deeper(schema, MAX_SCHEMA_DEPTH):
            return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
    raise InvalidRequest(
        f"the schema is not JSON that can be sent: {reason[:200]}",
        param=place,
        remedy="Give a JSON schema of moderate depth",
    )


def _malformed(fault: ShapeFault, place: str) -> InvalidRequest:
    key = (fault.unknown_key or fault.missing_key)[:_MAX_SHOWN_KEY_CHARS]
    param = place + fault.path + (f".{key}" if key else "")
    return InvalidRequest(
        f"{ascii(param)[1:-1]} is not acceptable: {fault.problem[:200]}",
        param=ascii(param)[1:-1],
        remedy='Give {"type": "function", "function": {"name", "description", "parameters"}}',
    )
