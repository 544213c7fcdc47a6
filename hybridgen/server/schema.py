"""Bodies → checked requests. Every refusal names the key at fault."""

from __future__ import annotations

import operator
from typing import Any

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.request import IdsPrompt, Prompt, SamplingParams, TextPrompt
from hybridgen.server.answer_format import read_grammar
from hybridgen.server.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    PromptField,
    SamplingBody,
    TokenizeBody,
    refuse_unserved,
)
from hybridgen.server.conversation import as_conversation
from hybridgen.server.generation import DetokenizeOrder, Generation, TokenizeOrder
from hybridgen.server.json_body import check_keys, decode_body
from hybridgen.server.prompt_size import check_body, check_ids, check_texts
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.tool_use import ToolUse, may_reason, read_tool_use
from hybridgen.tool import as_tools

#: What the API of completions has always meant by no max_tokens.
DEFAULT_COMPLETION_TOKENS = 16
#: Keys of a body that are handed to SamplingParams as they stand.
_SAMPLING_KEYS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "stop_regex",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)
_sampling_values = operator.attrgetter(*_SAMPLING_KEYS)


def read_chat(body: bytes, limits: RequestLimits) -> Generation:
    """Body of /v1/chat/completions.

    Raises:
        InvalidRequest, ContextLengthExceeded: with field ``param``.
    """
    check_body(body, "messages", 1, limits)
    chat = decode_body(body, ChatBody, limits.max_depth)
    refuse_unserved(chat)
    tools = read_tool_use(chat.tools, chat.tool_choice, chat.parallel_tool_calls, limits.tools)
    max_tokens, logprobs = _max_tokens(chat), _chat_logprobs(chat)
    offered = tools.tools if tools else []
    params = _params(chat, limits, max_tokens=max_tokens, logprobs=logprobs, tools=tools)
    reasoning = limits.reasoning if may_reason(params) else None
    if reasoning is not None:
        params = msgspec.structs.replace(params, keep_reasoning_marks=True)
    generation = Generation(
        prompts=[as_conversation(chat.messages, limits, offered, chat.chat_template_kwargs)],
        params=params,
        is_chat=True,
        tools=tools,
        reasoning=reasoning,
        **_manner(chat, limits, 1),
    )
    check_keys(body, limits.max_depth)
    return generation


def read_completion(body: bytes, limits: RequestLimits) -> Generation:
    """Body of /v1/completions.

    Raises:
        InvalidRequest, ContextLengthExceeded: with field ``param``.
    """
    check_body(body, "prompt", limits.max_choices, limits)
    completion = decode_body(body, CompletionBody, limits.max_depth)
    refuse_unserved(completion)
    _check_completion(completion)
    prompts = _prompts(completion.prompt, limits)
    max_tokens = completion.max_tokens
    max_tokens = DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens
    generation = Generation(
        prompts=prompts,
        params=_params(completion, limits, max_tokens=max_tokens, logprobs=completion.logprobs),
        is_chat=False,
        echoes=bool(completion.echo),
        **_manner(completion, limits, len(prompts)),
    )
    check_keys(body, limits.max_depth)
    return generation


def read_tokenize(body: bytes, limits: RequestLimits) -> TokenizeOrder:
    """Body of /tokenize.

    Raises:
        InvalidRequest, ContextLengthExceeded: with field ``param``.
    """
    check_body(body, "prompt", 1, limits)
    wanted = decode_body(body, TokenizeBody, limits.max_depth)
    refuse_unserved(wanted)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise InvalidRequest(
            "give either prompt or messages", param="prompt", remedy="Give exactly one of the two"
        )
    prompt: Prompt
    if wanted.messages is not None:
        offered = as_tools(wanted.tools or [])
        prompt = as_conversation(wanted.messages, limits, offered, wanted.chat_template_kwargs)
    else:
        _refuse_beside_text(wanted)
        prompt = _text_prompt(wanted.prompt, "prompt", limits)
    check_keys(body, limits.max_depth)
    return TokenizeOrder(wanted.model, prompt)


def _refuse_beside_text(wanted: TokenizeBody) -> None:
    """What a chat template is given says nothing about a text that goes through none."""
    for key in ("tools", "chat_template_kwargs"):
        if getattr(wanted, key):
            raise InvalidRequest(
                f"{key} goes with messages", param=key, remedy="Leave it out, or give messages"
            )


def read_detokenize(body: bytes, limits: RequestLimits) -> DetokenizeOrder:
    """Body of /detokenize.

    Raises:
        InvalidRequest: with field ``param``.
    """
    check_body(body, "tokens", 1, limits)
    wanted = decode_body(body, DetokenizeBody, limits.max_depth)
    check_ids(wanted.tokens, "tokens", limits)
    _check_vocabulary(wanted.tokens, "tokens", limits)
    check_keys(body, limits.max_depth)
    return DetokenizeOrder(wanted.model, wanted.tokens)


# --- what both kinds share ----------------------------------------------------------------------


def _manner(body: SamplingBody, limits: RequestLimits, num_prompts: int) -> dict[str, Any]:
    """The keys of Generation that say how to answer."""
    n = 1 if body.n is None else body.n
    if num_prompts * n > limits.max_choices:
        raise InvalidRequest(
            "prompts × n is out of range",
            param="n" if num_prompts == 1 else "prompt",
            value=num_prompts * n,
            limit=limits.max_choices,
            remedy="Ask for fewer at a time",
        )
    return {
        "model": body.model,
        "n": n,
        "priority": body.priority or 0,
        "is_stream": bool(body.stream),
        "includes_usage": _includes_usage(body),
    }


def _includes_usage(body: SamplingBody) -> bool:
    options = body.stream_options
    if options is None:
        return False
    if not body.stream:
        raise InvalidRequest(
            "stream_options needs stream",
            param="stream_options",
            remedy="Set stream to true, or leave stream_options out",
        )
    if options.include_obfuscation:
        raise InvalidRequest(
            "include_obfuscation is not served yet",
            param="stream_options.include_obfuscation",
            limit="false",
            remedy="Leave it out",
        )
    return bool(options.include_usage)


def _params(
    body: SamplingBody,
    limits: RequestLimits,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    tools: ToolUse | None = None,
) -> SamplingParams:
    given = zip(_SAMPLING_KEYS, _sampling_values(body), strict=True)
    params = SamplingParams(
        **{key: value for key, value in given if value is not None},
        max_tokens=max_tokens,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logprobs=logprobs,
        grammar=read_grammar(body.response_format, body.structured_outputs),
    )
    try:
        if tools is not None:
            params = tools.constrain(params)
        params.validate(limits.vocab_size)
    except InvalidRequest as error:
        # "stop (count)" is the key stop to whoever wrote the body.
        error.fields["param"] = str(error.fields.get("param", "")).partition(" ")[0]
        raise
    return params


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


# --- chats --------------------------------------------------------------------------------------


def _max_tokens(chat: ChatBody) -> int | None:
    old, new = chat.max_tokens, chat.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens are two names of one limit",
            param="max_tokens",
            value=old,
            limit=new,
            remedy="Give one of the two",
        )
    return old if new is None else new


def _chat_logprobs(chat: ChatBody) -> int | None:
    if chat.logprobs:
        return chat.top_logprobs or 0
    if chat.top_logprobs:
        raise InvalidRequest(
            "top_logprobs needs logprobs",
            param="top_logprobs",
            value=chat.top_logprobs,
            remedy="Set logprobs to true, or leave top_logprobs out",
        )
    return None


# --- completions --------------------------------------------------------------------------------


def _check_completion(completion: CompletionBody) -> None:
    best_of, n = completion.best_of, completion.n or 1
    if best_of is not None and best_of != n:
        raise InvalidRequest(
            "best_of other than n is not served",
            param="best_of",
            value=best_of,
            limit=n,
            remedy="Leave it out",
        )
    if completion.echo and completion.logprobs is not None:
        raise InvalidRequest(
            "echo together with logprobs is not served yet: it asks for those of the prompt",
            param="echo",
            remedy="Leave one of the two out",
        )


def _prompts(prompt: PromptField, limits: RequestLimits) -> list[Prompt]:
    """One prompt (a text, or ids), or a list of prompts of one kind."""
    if isinstance(prompt, str):
        return [_text_prompt(prompt, "prompt", limits)]
    if not prompt:
        raise _no_prompt("prompt")
    kind = type(prompt[0])
    if len(set(map(type, prompt))) > 1:
        other = next(index for index, one in enumerate(prompt) if type(one) is not kind)
        raise InvalidRequest(
            "the prompts are of different kinds",
            param=f"prompt[{other}]",
            remedy="Give a text, token ids, a list of texts, or a list of lists of ids",
        )
    if kind is int:
        return [_ids_prompt(prompt, "prompt", limits)]
    if len(prompt) > limits.max_choices:
        raise InvalidRequest(
            "too many prompts in one request",
            param="prompt",
            value=len(prompt),
            limit=limits.max_choices,
            remedy="Send fewer at a time",
        )
    read_one = _text_prompt if kind is str else _ids_prompt
    return [read_one(one, f"prompt[{index}]", limits) for index, one in enumerate(prompt)]


def _text_prompt(text: Any, place: str, limits: RequestLimits) -> Prompt:
    if not text:
        raise _no_prompt(place)
    check_texts([text], place, limits)
    return TextPrompt(text)


def _ids_prompt(ids: Any, place: str, limits: RequestLimits) -> Prompt:
    if not ids:
        raise _no_prompt(place)
    check_ids(ids, place, limits)
    _check_vocabulary(ids, place, limits)
    return IdsPrompt(ids)


def _no_prompt(place: str) -> InvalidRequest:
    return InvalidRequest(
        "the prompt is empty", param=place, remedy="Give at least one character or token id"
    )


def _check_vocabulary(ids: list[int], place: str, limits: RequestLimits) -> None:
    if limits.vocab_size is not None and ids and max(ids) >= limits.vocab_size:
        raise InvalidRequest(
            "a token id is outside the vocabulary",
            param=place,
            value=max(ids),
            limit=f"[0, {limits.vocab_size})",
            remedy="Use ids of this model's tokenizer",
        )
