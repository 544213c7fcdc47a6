"""Every kind of grammar as one: a Lark grammar in the dialect of llguidance."""

from __future__ import annotations

import json
import re

from llguidance import regex_to_lark

from hybridgen.request import Grammar
from hybridgen.sampling.schema_keys import check_schema, read_schema

#: What may stand between the parts of a JSON text: nothing, a space, or a line break with an
#: indent. Weak models fill a text with white space where it has no end.
_JSON_OPTIONS = {"whitespace_pattern": r"\x20|\r?\n[\x20\t]{0,32}", "lenient": False}
#: Any tokens may spell a text that the grammar allows; they are the model's to choose.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
_EMBEDDED = re.compile(r"%json\s*(?=\{)")


def as_lark(grammar: Grammar) -> str:
    """The Lark grammar that allows the same texts.

    Raises:
        InvalidRequest: the schema is none, or says what cannot be followed.
    """
    if grammar.kind == "lark":
        _check_embedded(grammar)
        return grammar.text + _OPTIONS
    if grammar.kind == "regex":
        return f"start: /{regex_to_lark(grammar.text)}/{_OPTIONS}"
    schema = {"type": "object"} if grammar.kind == "json_object" else read_schema(grammar)
    text = json.dumps({**schema, "x-guidance": _JSON_OPTIONS}, ensure_ascii=False, allow_nan=False)
    return f"start: %json {text}{_OPTIONS}"


def _check_embedded(grammar: Grammar) -> None:
    """Schemas inside of a Lark grammar are held to the same keywords."""
    for start in _EMBEDDED.finditer(grammar.text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(grammar.text, start.end())
        except (ValueError, RecursionError):
            continue  # in a comment, or malformed: the compiler knows
        check_schema(schema, grammar.param)
