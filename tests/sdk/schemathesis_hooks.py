"""Keeps valid requests within what no schema says: the context's length, keys that need others.

Requests that are meant to be wrong are sent as they are.
"""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import GenerationMode

MAX_TOKENS = 4
MAX_CHARS = 40
MAX_CHOICES = 128
MAX_STOP_BYTES = 200
VOCAB_SIZE = 512


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:  # noqa: ARG001  # a fixed signature
    meta = case.meta
    is_meant_well = meta is not None and meta.generation.mode == GenerationMode.POSITIVE
    if is_meant_well and isinstance(case.body, dict):
        case.body = whole(case.body)
        if case.operation.path in {"/v1/chat/completions", "/v1/completions"}:
            agree(case.body)
        if "tools" in case.body or "tool_choice" in case.body:
            agree_on_tools(case.body)
        for key in case.body.keys() & {"prompt", "messages"}:
            case.body[key] = shortened(case.body[key])


def agree(body: dict[str, Any]) -> None:
    """Few tokens, and no key without the one that it needs."""
    body["max_tokens"] = MAX_TOKENS
    body.pop("max_completion_tokens", None)
    body["min_tokens"] = min(body.get("min_tokens") or 0, MAX_TOKENS)
    if not body.get("stream"):
        body.pop("stream_options", None)
    if not body.get("logprobs"):
        body.pop("top_logprobs", None)
    if body.get("logprobs") is not None and "prompt" in body:
        body.pop("echo", None)
    if body.get("best_of") is not None:
        body["best_of"] = body.get("n") or 1
    if isinstance(body.get("prompt"), list) and not isinstance(body["prompt"][0], int):
        body["prompt"] = body["prompt"][: MAX_CHOICES // (body.get("n") or 1)]
    if body.get("stop"):
        stops = body["stop"] if isinstance(body["stop"], list) else [body["stop"]]
        body["stop"] = [cut(text) for text in stops]
    if body.get("stop_regex"):
        body["stop_regex"] = "a+b"  # what the subset holds, no schema says
    if body.get("structured_outputs") or body.get("response_format") or body.get("tools"):
        body.pop("ignore_eos", None)  # a text with a format ends where that does
    if body.get("structured_outputs") is not None:
        body.pop("response_format", None)
        make_compilable(body["structured_outputs"])
    if isinstance(body.get("response_format"), dict) and "json_schema" in body["response_format"]:
        body["response_format"]["json_schema"]["schema"] = {"type": "object"}
    if body.get("logit_bias"):
        body["logit_bias"] = {str(int(k) % VOCAB_SIZE): v for k, v in body["logit_bias"].items()}


def agree_on_tools(body: dict[str, Any]) -> None:
    """Names of their own, a choice among them, and nothing else that the answer must be."""
    tools = body["tools"] = (body.get("tools") or [])[:2]
    for index, tool in enumerate(tools):
        tool["function"] |= {"name": f"f{index}", "description": "Does.", "parameters": None}
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        choice["function"]["name"] = "f0"
    if not tools and choice not in (None, "none", "auto"):
        del body["tool_choice"]
    if tools:
        body.pop("response_format", None)
        body.pop("structured_outputs", None)


def make_compilable(wanted: dict[str, Any]) -> None:
    """Whether a schema, an expression or a grammar is a good one, no schema says."""
    good = {"json": {"type": "object"}, "regex": "a+", "grammar": 'start: "a"', "choice": ["a"]}
    for key in good.keys() & wanted.keys():
        if wanted[key] is not None:
            wanted[key] = good[key]


def cut(text: str) -> str:
    """So short that its bytes, not only its characters, are few enough."""
    return text.encode()[:MAX_STOP_BYTES].decode(errors="ignore")


def shortened(value: Any) -> Any:
    """The same shape with shorter texts and fewer ids."""
    if isinstance(value, str):
        return value[:MAX_CHARS]
    if isinstance(value, list):
        return [shortened(one) for one in value[:MAX_CHARS]]
    if isinstance(value, dict):
        texts = value.keys() & {"content", "text"}
        calls = {"tool_calls": (value.get("tool_calls") or [])[:2]} if "tool_calls" in value else {}
        return value | calls | {key: shortened(value[key]) for key in texts}
    return value


def whole(value: Any) -> Any:
    """Whole numbers without a point: a schema takes 1.0 for an integer, a strict reader not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(one) for one in value]
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    return value
