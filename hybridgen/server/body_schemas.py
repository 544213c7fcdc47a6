"""What bodies may hold beyond what their types tell: bounds, and keys that go together."""

from __future__ import annotations

from typing import Any

from hybridgen import request
from hybridgen.server import answer_format, bodies, conversation
from hybridgen.server.json_schema import Schema
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.served_models import ServedModels
from hybridgen.text import template_kwargs

_INT32 = 2**31 - 1
_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": "string", "minLength": 1}
_STOP: Schema = {**_TEXT, "maxLength": request.MAX_STOP_BYTES}
_PART: Schema = {"$ref": "#/components/schemas/ContentPart"}
_MAX_KIB = request.MAX_GRAMMAR_BYTES // 1024
_GRAMMAR: Schema = {"description": f"At most {_MAX_KIB} KiB in UTF-8."}
_TOOLS: Schema = {
    "description": f"Held to their schemas (strict, a tool_choice that asks for a call, or "
    f"response_format beside them) they may make a grammar of {_MAX_KIB} KiB in all."
}
_VALUE: Schema = {"$ref": "#/components/schemas/TemplateValue"}
#: By its name, as values have values in them.
TEMPLATE_VALUE: dict[str, Schema] = {
    "TemplateValue": {
        "anyOf": [
            {"type": ["null", "boolean", "string"]},
            {
                "type": "number",
                "minimum": template_kwargs.MIN_NUMBER,
                "maximum": template_kwargs.MAX_NUMBER,
            },
            {"type": "array", "items": _VALUE},
            {"type": "object", "additionalProperties": _VALUE},
        ]
    }
}
_KWARGS: Schema = {
    "type": "object",
    "additionalProperties": _VALUE,
    "maxProperties": template_kwargs.MAX_VARIABLES,
    "description": f"At most {template_kwargs.MAX_BYTES // 1024} KiB of JSON, nested at most "
    f"{template_kwargs.MAX_DEPTH} deep.",
    "propertyNames": {
        "pattern": f"^{template_kwargs.NAME_PATTERN}$",
        "not": {"enum": list(template_kwargs.RESERVED)},
    },
}
_BIAS = request.MAX_LOGIT_BIAS_VALUE


def unserved_schemas() -> dict[str, Schema]:
    """Keys that are refused unless their value asks for nothing."""
    return {key: {"enum": [None, *harmless]} for key, harmless in bodies.UNSERVED.items()}


def exact_schemas(models: ServedModels, limits: RequestLimits) -> dict[str, Schema]:
    """By "Struct.key", "*.key" or "Struct", as ``SchemaWriter`` takes them."""
    max_tokens = _or_null(type="integer", minimum=1, maximum=limits.max_model_len or _INT32)
    return {
        **_NUMBERS,
        **_tokens((limits.vocab_size or 2**31) - 1, limits),
        **_MESSAGES,
        "*.model": {"enum": [None, *models.names]},
        "ChatAnswer.model": {"type": "string"},
        "CompletionAnswer.model": {"type": "string"},
        "*.max_tokens": max_tokens,
        "*.max_completion_tokens": max_tokens,
        "*.messages": {"minItems": 1, "maxItems": limits.max_messages},
        "*.stop": {
            "anyOf": [
                _STOP,
                {"type": "array", "items": _STOP, "maxItems": request.MAX_STOP_STRINGS},
                _NULL,
            ]
        },
        "*.stop_regex": _or_null(
            type="string", minLength=1, maxLength=request.MAX_STOP_REGEX_BYTES
        ),
        "StreamOptions.include_obfuscation": {"enum": [None, False]},
        "TokenizeBody": {"oneOf": _texts_or_messages()},
        "NamedSchema.schema": {"anyOf": [{"type": "object"}, {"type": "boolean"}], **_GRAMMAR},
        "StructuredOutputs.json": _or_null(type=["object", "boolean", "string"]) | _GRAMMAR,
        "StructuredOutputs.regex": _GRAMMAR,
        "StructuredOutputs.grammar": _GRAMMAR,
        "StructuredOutputs.choice": _GRAMMAR,
        "ChatBody.tools": _TOOLS,
        "*.chat_template_kwargs": _or_null(**_KWARGS),
        "StructuredOutputs": {"oneOf": _one_of_structured_outputs()},
        "Message": {"anyOf": _messages()},
    }


def _or_null(**schema: Any) -> Schema:
    return {"anyOf": [schema, _NULL]}


_NUMBERS: dict[str, Schema] = {
    "*.temperature": {"minimum": 0, "maximum": request.MAX_TEMPERATURE},
    "*.top_k": {"minimum": -1, "maximum": _INT32},
    "*.top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "*.min_p": {"minimum": 0, "maximum": 1},
    "*.repetition_penalty": {"exclusiveMinimum": 0, "maximum": 100},
    "*.presence_penalty": {"minimum": -2, "maximum": 2},
    "*.frequency_penalty": {"minimum": -2, "maximum": 2},
    "*.seed": {"minimum": 0, "maximum": request.MAX_SEED},
    "*.min_tokens": {"minimum": 0, "maximum": _INT32},
    "*.logit_bias": _or_null(
        type="object",
        propertyNames={"pattern": "^(0|[1-9][0-9]{0,9})$"},
        maxProperties=request.MAX_LOGIT_BIAS,
        additionalProperties={"type": "number", "minimum": -_BIAS, "maximum": _BIAS},
    ),
}


def _tokens(max_id: int, limits: RequestLimits) -> dict[str, Schema]:
    token: Schema = {"type": "integer", "minimum": 0, "maximum": max_id}
    ids: Schema = {"type": "array", "items": token, "minItems": 1}
    several = {"type": "array", "minItems": 1, "maxItems": limits.max_choices}
    prompts = [_TEXT, ids, {**several, "items": _TEXT}, {**several, "items": ids}]
    stops = _or_null(type="array", items=token, maxItems=request.MAX_STOP_TOKEN_IDS)
    return {
        "*.stop_token_ids": stops,
        "DetokenizeBody.tokens": {"type": "array", "items": token},
        "CompletionBody.prompt": {"anyOf": prompts},
    }


_UNSERVED_OF_MESSAGES = ("refusal", "annotations", "audio", "function_call")
_MESSAGES: dict[str, Schema] = {
    "Message.content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, _NULL]},
    "Message.role": {"enum": list(conversation.ROLES)},
    "ContentPart.type": {"const": "text"},
    **{f"Message.{key}": {"enum": [None, "", []]} for key in _UNSERVED_OF_MESSAGES},
}


def _texts_or_messages() -> list[Schema]:
    """Exactly one of the two; a text goes through no template."""
    no_template: Schema = {
        "tools": {"enum": [None, []]},
        "chat_template_kwargs": {"enum": [None, {}]},
    }
    return [
        {"required": ["prompt"], "properties": {"prompt": _TEXT, "messages": _NULL, **no_template}},
        {"required": ["messages"], "properties": {"messages": {"type": "array"}, "prompt": _NULL}},
    ]


def _messages() -> list[Schema]:
    """Which keys go with which roles."""
    no_calls: Schema = {"enum": [None, []]}
    plain = [role for role in conversation.ROLES if role not in {"assistant", "tool"}]
    no_answer: Schema = {"tool_calls": no_calls, "reasoning_content": _NULL}
    said = {"role": {"enum": plain}, "tool_call_id": _NULL, **no_answer}
    answered = {"role": {"const": "assistant"}, "tool_calls": no_calls, "tool_call_id": _NULL}
    calls = {"type": "array", "minItems": 1}
    called = {"role": {"const": "assistant"}, "tool_calls": calls, "tool_call_id": _NULL}
    result = {"role": {"const": "tool"}, "tool_call_id": {"type": "string"}, **no_answer}
    return [
        {"required": ["role", "content"], "properties": {**said, "content": {"not": _NULL}}},
        {"required": ["role", "content"], "properties": {**answered, "content": {"not": _NULL}}},
        {"required": ["role", "tool_calls"], "properties": called},
        {
            "required": ["role", "content", "tool_call_id"],
            "properties": {**result, "content": {"not": _NULL}},
        },
    ]


def _one_of_structured_outputs() -> list[Schema]:
    """Exactly one key."""
    keys = answer_format.StructuredOutputs.__struct_fields__
    nothing: dict[str, Schema] = dict.fromkeys(keys, _NULL)
    nothing["json_object"] = {"enum": [None, False]}
    given: dict[str, Schema] = {key: {"not": _NULL} for key in keys}
    given |= {"json_object": {"const": True}, "regex": _TEXT, "grammar": _TEXT}
    return [
        {"required": [key], "properties": {**nothing, key: schema}} for key, schema in given.items()
    ]
