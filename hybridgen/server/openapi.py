"""The API's description as OpenAPI 3.1, made from the types that read and write its bodies."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from hybridgen.server import answers, bodies, conversation
from hybridgen.server.body_schemas import TEMPLATE_VALUE, exact_schemas, unserved_schemas
from hybridgen.server.json_schema import Schema, SchemaWriter
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.routing import Route
from hybridgen.server.served_models import ServedModels
from hybridgen.version import __version__

#: What any operation may answer besides what it is for.
REFUSALS = {
    400: "The request is not acceptable; param names what is wrong.",
    401: "A key is needed.",
    403: "The server does not answer to this name (Host); see --allowed-hosts.",
    404: "There is no such path or model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON in UTF-8, or packed.",
    429: "Too many requests wait; Retry-After says when to come back.",
    431: "The headers are too large.",
    500: "A bug; please report it.",
    503: "Not ready, or stopping; Retry-After says when to come back.",
    504: "Not answered in time.",
}
EVENTS = "With stream: events whose data is a chunk, or an error; [DONE] is the last."
_WAIT = (429, 503)


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    summary: str
    answer: Schema | type
    body: type | None = None
    can_stream: bool = False
    is_open: bool = False  # needs no key
    media_types: tuple[str, ...] = ("application/json",)
    parameters: tuple[Schema, ...] = ()
    statuses: tuple[int, ...] = ()  # besides 200, with the same kind of answer


def openapi(
    models: ServedModels,
    limits: RequestLimits,
    *,
    needs_key: bool,
    routes: Iterable[Route] = (),
) -> bytes:
    """The description of one server, as JSON.

    Args:
        models: whose names may be asked for.
        limits: of what a body may ask for.
        needs_key: whether operations that are not open ask for a key.
        routes: of this server beyond those that each has; one that is not known here is left out.
    """
    writer = SchemaWriter(exact_schemas(models, limits), unserved_schemas())
    error = writer.ref(ErrorAnswer)
    writer.ref(conversation.ContentPart)
    paths: dict[str, Schema] = {}
    for operation in (*OPERATIONS, *_mounted(routes)):
        described = _operation(operation, writer, error)
        if needs_key and not operation.is_open:
            described["security"] = [{"key": []}]
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    components: Schema = {"schemas": {**writer.components, **TEMPLATE_VALUE}}
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "HybridGen",
                "version": __version__,
                "license": {"name": "Apache-2.0"},
            },
            "paths": paths,
            "components": components,
        }
    )


class ErrorFacts(msgspec.Struct, frozen=True):
    """What went wrong, for people and programs."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every answer that is no success."""

    error: ErrorFacts


class ChatAnswer(answers.Answer, frozen=True):
    """A conversation's next turn."""

    choices: list[answers.ChatChoice]


class CompletionAnswer(answers.Answer, frozen=True):
    """A text's continuation."""

    choices: list[answers.CompletionChoice]


OBJECT: Schema = {"type": "object"}
_MODEL: Schema = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
_generate = functools.partial(Operation, "POST", can_stream=True)
_health = functools.partial(Operation, "GET", answer=OBJECT, is_open=True)
#: What a server answers, apart from its page for people.
OPERATIONS = (
    _generate("/v1/chat/completions", "Answer a conversation", ChatAnswer, bodies.ChatBody),
    _generate("/v1/completions", "Continue a text", CompletionAnswer, bodies.CompletionBody),
    Operation("POST", "/tokenize", "Text to ids", OBJECT, bodies.TokenizeBody),
    Operation("POST", "/detokenize", "Ids to text", OBJECT, bodies.DetokenizeBody),
    Operation("GET", "/v1/models", "The models", OBJECT),
    Operation("GET", "/v1/models/{model}", "One model", OBJECT, parameters=(_MODEL,)),
    Operation("GET", "/version", "The server's version", OBJECT),
    Operation("GET", "/ps", "The processes", OBJECT),
    Operation("GET", "/openapi.json", "This description", OBJECT),
    _health("/health", "Whether requests would be served", statuses=(503,)),
    _health("/health/ready", "The same", statuses=(503,)),
    _health("/health/live", "Whether anybody answers"),
    _health("/health/startup", "Whether the model was ready once", statuses=(503,)),
)


#: What a server answers where it is told to, by path.
MOUNTABLE = {
    "/metrics": Operation(
        "GET",
        "/metrics",
        "For Prometheus",
        {"type": "string"},
        media_types=("text/plain", "application/openmetrics-text"),
        parameters=(
            {
                "name": "compat",
                "in": "query",
                "description": "Also the metrics that vLLM has, under its names.",
                "schema": {"enum": ["vllm"]},
            },
        ),
    )
}


def _mounted(routes: Iterable[Route]) -> Iterator[Operation]:
    for route in routes:
        if route.path in MOUNTABLE:
            yield MOUNTABLE[route.path]._replace(is_open=route.is_open)


def _operation(operation: Operation, writer: SchemaWriter, error: Schema) -> Schema:
    answer = operation.answer
    schema = answer if isinstance(answer, dict) else writer.ref(answer)
    content = {media_type: {"schema": schema} for media_type in operation.media_types}
    if operation.can_stream:
        content["text/event-stream"] = {"schema": {"description": EVENTS}}
    described: Schema = {
        "operationId": (operation.method + operation.path).translate(_WORD),
        "summary": operation.summary,
        "responses": {
            "200": {"description": "As asked for.", "content": content},
            **{str(status): _refusal(status, error) for status in REFUSALS},
            **{
                str(s): {"description": REFUSALS[s], "content": content} for s in operation.statuses
            },
        },
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        body = {"application/json": {"schema": writer.ref(operation.body)}}
        described["requestBody"] = {"required": True, "content": body}
    return described


_WORD = str.maketrans("/{}", "_  ")


def _refusal(status: int, error: Schema) -> Schema:
    refusal: Schema = {
        "description": REFUSALS[status],
        "content": {"application/json": {"schema": error}},
    }
    if status in _WAIT:
        seconds = {"description": "Seconds.", "required": True, "schema": {"type": "integer"}}
        refusal["headers"] = {"retry-after": seconds}
    return refusal
