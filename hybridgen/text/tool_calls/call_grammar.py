"""Grammars that hold an answer to calls, or its calls to the schemas of their functions.

They are in llguidance's dialect of Lark, and allow what models of the format's family write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.tool import Function

#: JSON as models were trained to write it: one space after commas and colons.
_JSON_STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_ANY_ARGUMENTS = {"type": "object"}


class CallGrammar:
    """Writes grammars for one model.

    Args:
        format_: of its calls.
        special_ids: ids of those of the format's marks that are special tokens.
    """

    def __init__(self, format_: CallFormat, special_ids: Mapping[str, int]) -> None:
        self._format = format_
        self._special_ids = special_ids

    def forced(self, functions: Sequence[Function], is_parallel: bool) -> str:
        """Nothing but calls: one, or with ``is_parallel`` one or more."""
        lines = [f"start: {self._calls(is_parallel)}", *_objects(functions, self._format)]
        return "\n".join(lines)

    def either(
        self, functions: Sequence[Function], schema: dict[str, Any], *, is_parallel: bool
    ) -> str:
        """Calls, or JSON that keeps to ``schema``."""
        return "\n".join(
            [
                "start: calls | answer",
                f"calls: {self._calls(is_parallel)}",
                f"answer: %json {_styled(schema)}",
                *_objects(functions, self._format, strict_only=True),
            ]
        )

    def free(self, functions: Sequence[Function], is_parallel: bool) -> str:
        """Text, and calls that keep to the schemas of strict functions.

        Only a call can follow a mark of calls then. Where models leave the mark out, only calls
        can begin with a bracket.
        """
        if self._format.is_opener_rare:
            lines = [
                "start: calls | TEXT",
                f"calls: {self._calls(is_parallel)}",
                "TEXT: /[ \\t\\r\\n]*([^{\\[ \\t\\r\\n](.|\\n)*)?/",
            ]
        else:
            lines = [
                f"start: calling{'*' if is_parallel else '?'} ending",
                "ending: TEXT",
                "TEXT: /(.|\\n)*/",
                self._opening(),
                f"calling: opening {self._opened(is_parallel)}",
            ]
        return "\n".join([*lines, *_objects(functions, self._format, strict_only=True)])

    def _opening(self) -> str:
        opener = self._format.opener
        if opener in self._special_ids:
            return f"opening: TEXT {self._mark(opener)}"
        return f"opening[lazy]: TEXT {_quoted(opener)}"

    def _calls(self, is_parallel: bool) -> str:
        opener = "" if self._format.is_opener_rare else self._mark(self._format.opener)
        one = f"{opener} {self._opened(is_parallel)}".strip()
        return f'{one} ("\\n" {one})*' if is_parallel and self._format.closer else one

    def _opened(self, is_parallel: bool) -> str:
        """What follows the opener."""
        if self._format.closer:
            return f'"\\n" call "\\n" {self._mark(self._format.closer)}'
        before, between, after = self._format.around_calls
        further = f"({_quoted(between)} call)*" if is_parallel else ""
        return " ".join(part for part in (_text(before), "call", further, _text(after)) if part)

    def _mark(self, mark: str) -> str:
        token_id = self._special_ids.get(mark)
        return _quoted(mark) if token_id is None else f"<[{token_id}]>"


def _objects(
    functions: Sequence[Function], format_: CallFormat, *, strict_only: bool = False
) -> list[str]:
    """The rule ``call``: the object of a call of one of the functions."""
    names = [f"call_{index}" for index in range(len(functions))]
    lines = ["call: " + " | ".join(names)]
    for name, function in zip(names, functions, strict=True):
        is_free = strict_only and not function.strict
        schema = _ANY_ARGUMENTS if is_free else _schema(function)
        # One literal for each token of JSON, so that other JSON may stand in a call's place.
        tokens = ["{", '"name"', ": ", f'"{function.name}"', ", "]
        tokens += [f'"{format_.arguments_key}"', ": "]
        start = " ".join(map(_quoted, tokens))
        lines.append(f'{name}: {start} arguments_{name} "}}"')
        lines.append(f"arguments_{name}: %json {_styled(schema)}")
    return lines


def _schema(function: Function) -> dict[str, Any]:
    """Of the arguments; without parameters there are none."""
    if function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema: dict[str, Any] = json.loads(function.parameters)
    # A schema that says nothing of the type means an object all the same.
    return {"type": "object", **schema}


def _styled(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _JSON_STYLE}, ensure_ascii=False)


def _text(text: str) -> str:
    return _quoted(text) if text else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
