"""The JSON objects that clients send, key by key.

A key stands here when it is honoured, or when common clients send it with a value that asks for
nothing special (``UNSERVED``). null always means what leaving the key out means. Any other key is
refused by its name.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

import msgspec

from hybridgen.request import MAX_LOGPROBS, MAX_PRIORITY
from hybridgen.server.answer_format import ResponseFormat, StructuredOutputs
from hybridgen.server.conversation import Message
from hybridgen.server.tool_use import ToolChoice
from hybridgen.server.unserved import NULL, refuse_asked
from hybridgen.text.template_kwargs import MAX_VARIABLES
from hybridgen.tool import MAX_TOOLS, ToolSpec

_MAX_INT32 = 2**31 - 1
MAX_N = 128
NumChoices = Annotated[int, msgspec.Meta(ge=1, le=MAX_N)]
NumTokens = Annotated[int, msgspec.Meta(ge=1, le=_MAX_INT32)]
NumTopLogprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]
Priority = Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT32)]
MetadataKey = Annotated[str, msgspec.Meta(max_length=64)]
MetadataValue = Annotated[str, msgspec.Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], msgspec.Meta(max_length=16)]
Tools = Annotated[list[ToolSpec], msgspec.Meta(max_length=MAX_TOOLS)] | None
TemplateKwargs = Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_VARIABLES)] | None
PromptField = str | list[str | TokenId | list[TokenId]] | None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes into a stream besides its text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against eavesdroppers; only false is served."""


class SamplingBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What chats and completions have in common. Sampling keys mean what SamplingParams says."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: NumChoices | None = None
    priority: Priority | None = None

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: NumTokens | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None

    user: str | None = None
    """A word of the client's own; nothing is done with it."""
    metadata: Metadata | None = None
    """The same."""
    response_format: ResponseFormat = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: msgspec.Raw = NULL


class ChatBody(SamplingBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/chat/completions."""

    messages: list[Message]
    chat_template_kwargs: TemplateKwargs = None
    """Further variables for the model's chat template, as vLLM has it."""
    max_completion_tokens: NumTokens | None = None
    """Newer name of max_tokens."""
    logprobs: bool | None = None
    top_logprobs: NumTopLogprobs | None = None

    audio: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL
    functions: msgspec.Raw = NULL
    modalities: msgspec.Raw = NULL
    moderation: msgspec.Raw = NULL
    parallel_tool_calls: bool | None = None
    """Whether an answer may call more than one tool; it may unless this is false."""
    prediction: msgspec.Raw = NULL
    prompt_cache_key: str | None = None
    """Where prompts would be cached; every prompt of ours is served from one place."""
    prompt_cache_options: msgspec.Raw = NULL
    prompt_cache_retention: msgspec.Raw = NULL
    reasoning_effort: msgspec.Raw = NULL
    safety_identifier: str | None = None
    """As user."""
    service_tier: msgspec.Raw = NULL
    store: msgspec.Raw = NULL
    tool_choice: ToolChoice = None
    tools: Tools = None
    verbosity: msgspec.Raw = NULL
    web_search_options: msgspec.Raw = NULL


class CompletionBody(SamplingBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/completions."""

    prompt: PromptField
    echo: bool | None = None
    logprobs: NumTopLogprobs | None = None
    best_of: NumChoices | None = None
    suffix: msgspec.Raw = NULL


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /tokenize: a text, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Tools = None
    chat_template_kwargs: TemplateKwargs = None
    add_special_tokens: msgspec.Raw = NULL
    add_generation_prompt: msgspec.Raw = NULL


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[TokenId]


#: Key → the values, besides null, that ask for nothing special.
UNSERVED: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def refuse_unserved(body: msgspec.Struct) -> None:
    """Refuse what is documented elsewhere and not served here.

    Raises:
        InvalidRequest: naming the first such key.
    """
    for key in _unserved_keys(type(body)):
        value = getattr(body, key)
        if value is not NULL:
            refuse_asked(value, key, key, UNSERVED[key])


@functools.cache
def _unserved_keys(shape: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(key for key in shape.__struct_fields__ if key in UNSERVED)
