"""What the text of an answer must look like: ``response_format`` and ``structured_outputs``.

The first is OpenAI's, the second vLLM's, which has more. Schemas stay as they were written, since
it is a tokenizer that compiles them; here only their keywords are looked at.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.request import Grammar
from hybridgen.sampling.schema_keys import read_schema
from hybridgen.server.json_body import unique_keys
from hybridgen.server.unserved import NULL
from hybridgen.tool import NAME_PATTERN

MAX_CHOICES = 1000
_RESPONSE_FORMAT = "response_format"
_STRUCTURED_OUTPUTS = "structured_outputs"


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TextFormat(_Body, frozen=True, tag_field="type", tag="text"):
    """Anything."""


class JsonObjectFormat(_Body, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(_Body, frozen=True):
    """A JSON schema. It is followed to the letter, whether ``strict`` or not."""

    name: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(_Body, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that a schema describes."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | None


class StructuredOutputs(_Body, frozen=True):
    """Exactly one of these."""

    json: msgspec.Raw = NULL
    """A schema, or a text that is one."""
    regex: str | None = None
    """Of the whole text."""
    choice: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_CHOICES)] | None = None
    """One of these texts."""
    grammar: str | None = None
    """In Lark, as llguidance reads it."""
    json_object: bool | None = None
    """Any JSON object."""


def read_grammar(
    response_format: ResponseFormat, structured_outputs: StructuredOutputs | None
) -> Grammar | None:
    """The grammar that a body asks for.

    Raises:
        InvalidRequest: naming the key.
    """
    grammar = _of_response_format(response_format)
    if structured_outputs is None:
        return grammar
    if grammar is not None:
        raise InvalidRequest(
            "response_format and structured_outputs are two ways to ask for one thing",
            param=_STRUCTURED_OUTPUTS,
            remedy="Leave one of the two out",
        )
    return _of_structured_outputs(structured_outputs)


def _of_response_format(wanted: ResponseFormat) -> Grammar | None:
    if isinstance(wanted, JsonObjectFormat):
        return Grammar("json_object", param=_RESPONSE_FORMAT)
    if isinstance(wanted, JsonSchemaFormat):
        return _schema(bytes(wanted.json_schema.schema), f"{_RESPONSE_FORMAT}.json_schema.schema")
    return None


def _of_structured_outputs(wanted: StructuredOutputs) -> Grammar:
    given: dict[str, Any] = {
        key: value for key in wanted.__struct_fields__ if _is_given(value := getattr(wanted, key))
    }
    if len(given) != 1:
        raise InvalidRequest(
            "structured_outputs takes exactly one key",
            param=_STRUCTURED_OUTPUTS,
            value=", ".join(given) or "none",
            limit=", ".join(wanted.__struct_fields__),
            remedy="Give one of them",
        )
    [(key, value)] = given.items()
    param = f"{_STRUCTURED_OUTPUTS}.{key}"
    if key == "json":
        written = bytes(value)
        return _quoted_schema(written, param) if written[:1] == b'"' else _schema(written, param)
    if key == "choice":
        return Grammar.choice(value, param)
    if key == "json_object":
        return Grammar("json_object", param=param)
    return Grammar("regex" if key == "regex" else "lark", value, param)


def _is_given(value: object) -> bool:
    """Whether a key asks for anything; a null may have been written out."""
    if isinstance(value, msgspec.Raw):
        return bytes(value) != b"null"
    return value is not None and value is not False


def _quoted_schema(quoted: bytes, param: str) -> Grammar:
    """A schema in a text, whose keys nobody has looked at with those of the body."""
    text = msgspec.json.decode(quoted, type=str)
    grammar = _schema(text.encode(), param)
    try:
        json.loads(text, object_pairs_hook=unique_keys)
    except InvalidRequest as error:
        error.fields["param"] = param
        raise
    return grammar


def _schema(written: bytes, param: str) -> Grammar:
    grammar = Grammar("json_schema", written.decode(), param)
    grammar.validate()
    read_schema(grammar)
    return grammar
