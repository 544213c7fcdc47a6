"""Whole answers as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from hybridgen.errors import Cancelled
from hybridgen.request import IdsPrompt, Prompt, RequestOutput, TextPrompt
from hybridgen.server.answer_reader import answer_reader, read_answer
from hybridgen.server.generation import Generation
from hybridgen.server.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    Vocabulary,
    chat_logprobs,
    completion_logprobs,
)
from hybridgen.text.reasoning import num_reasoning_tokens
from hybridgen.tool import ToolCall


class AnswerHead(msgspec.Struct, frozen=True):
    """What every piece of one answer repeats."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    """The name under which the model is served."""


class PromptDetails(msgspec.Struct, frozen=True):
    """More about the tokens of the prompt."""

    cached_tokens: int
    """Found in the KV cache, and not computed again."""


class CompletionDetails(msgspec.Struct, frozen=True):
    """More about the tokens of the answer."""

    reasoning_tokens: int
    """Of its reasoning, marks included."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of an answer. A prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | msgspec.UnsetType = msgspec.UNSET
    """Left out where the model's reasoning is not told apart."""

    @classmethod
    def of(
        cls, outputs: Sequence[RequestOutput], generation: Generation, vocabulary: Vocabulary
    ) -> Usage:
        """Of all choices, those of one prompt after those of the other.

        As cached counts what every choice found: the first computes what the others share.
        """
        n, format_ = generation.n, generation.reasoning
        num_prompt = sum(output.num_prompt_tokens for output in outputs[::n])
        num_completion = sum(len(output.token_ids) for output in outputs)
        cached = [output.num_cached_tokens for output in outputs]
        num_cached = sum(min(cached[first : first + n]) for first in range(0, len(cached), n))
        details: CompletionDetails | msgspec.UnsetType = msgspec.UNSET
        if format_ is not None:
            counts = (
                num_reasoning_tokens(format_, output.text, output.token_ids, vocabulary.token_bytes)
                for output in outputs
            )
            details = CompletionDetails(sum(counts))
        num_total = num_prompt + num_completion
        return cls(num_prompt, num_completion, num_total, PromptDetails(num_cached), details)


class AnswerMessage(msgspec.Struct, frozen=True):
    """The turn that the model adds."""

    content: str | None
    """null when there is nothing but calls, or reasoning."""
    role: str = "assistant"
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    """Left out where there is none."""
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    """Left out where there are none."""


class ChatChoice(msgspec.Struct, frozen=True):
    """One of n answers to a chat."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    seed: int
    """With which it can be had again: an addition to the API, see docs/operations.md."""


class CompletionChoice(msgspec.Struct, frozen=True):
    """One of n continuations of one of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str
    seed: int
    """With which it can be had again: an addition to the API, see docs/operations.md."""


class Answer(msgspec.Struct, frozen=True):
    """Answer of /v1/chat/completions and /v1/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice] | list[CompletionChoice]
    usage: Usage


_encoder = msgspec.json.Encoder()


def new_id(generation: Generation, request_id: str) -> str:
    """The answer's id: its kind and the request's own."""
    return f"{'chatcmpl' if generation.is_chat else 'cmpl'}-{request_id}"


def public_finish_reason(finish_reason: str) -> str:
    """The word for a client.

    Raises:
        Cancelled: the request did not end by itself; there is no answer to finish.
    """
    if finish_reason in {"stop", "length"}:
        return finish_reason
    raise Cancelled(
        "the request was ended before its answer was complete",
        value=finish_reason,
        remedy="Send it again",
    )


def echoed(prompt: Prompt, vocabulary: Vocabulary) -> str:
    """The text of a completion's prompt."""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    return vocabulary.decode(prompt.ids, False) if isinstance(prompt, IdsPrompt) else ""


async def whole_answer(
    head: AnswerHead,
    generation: Generation,
    outputs: Sequence[RequestOutput],
    vocabulary: Vocabulary,
) -> bytes:
    """The answer to a request without ``stream``. Others have their turn between its choices.

    Args:
        head: its id, time and model.
        generation: what was asked.
        outputs: of each choice, in order.
        vocabulary: the model's.

    Raises:
        Cancelled: a choice did not end by itself.
    """
    if generation.is_chat:
        kind = "chat.completion"
        choices: list[ChatChoice] | list[CompletionChoice] = [
            await _chat_choice(index, generation, output, vocabulary)
            for index, output in enumerate(outputs)
        ]
    else:
        kind = "text_completion"
        choices = [
            await _completion_choice(index, generation, output, vocabulary)
            for index, output in enumerate(outputs)
        ]
    usage = Usage.of(outputs, generation, vocabulary)
    answer = Answer(head.id, kind, head.created, head.model, choices, usage)
    return _encoder.encode(answer)


async def _chat_choice(
    index: int, generation: Generation, output: RequestOutput, vocabulary: Vocabulary
) -> ChatChoice:
    if generation.num_choices > 1:
        await asyncio.sleep(0)
    tokens = output.logprobs
    reason = public_finish_reason(output.finish_reason)
    message = AnswerMessage(output.text)
    reader = answer_reader(generation)
    if reader is not None:
        answer = await read_answer(reader, output.text, reason)
        reason = answer.finish_reason
        message = AnswerMessage(
            answer.content,
            reasoning_content=answer.reasoning or msgspec.UNSET,
            tool_calls=answer.calls or msgspec.UNSET,
        )
    return ChatChoice(
        index=index,
        message=message,
        logprobs=None if tokens is None else chat_logprobs(tokens, vocabulary),
        finish_reason=reason,
        seed=output.seed,
    )


async def _completion_choice(
    index: int, generation: Generation, output: RequestOutput, vocabulary: Vocabulary
) -> CompletionChoice:
    if generation.num_choices > 1:
        await asyncio.sleep(0)
    prompt, _ = generation.choice(index)
    echo = echoed(prompt, vocabulary) if generation.echoes else ""
    tokens, text = output.logprobs, output.text
    return CompletionChoice(
        index=index,
        text=echo + text,
        logprobs=None if tokens is None else completion_logprobs(tokens, vocabulary, text, 0),
        finish_reason=public_finish_reason(output.finish_reason),
        seed=output.seed,
    )


def tokenize_answer(ids: Sequence[int], max_model_len: int) -> bytes:
    """Answer of /tokenize."""
    return _encoder.encode({"count": len(ids), "max_model_len": max_model_len, "tokens": ids})


def detokenize_answer(text: str) -> bytes:
    """Answer of /detokenize."""
    return _encoder.encode({"prompt": text})


def model_answer(name: str, created: int, max_model_len: int) -> bytes:
    """Answer of /v1/models/NAME."""
    return _encoder.encode(_model(name, created, max_model_len))


def models_answer(names: Sequence[str], created: int, max_model_len: int) -> bytes:
    """Answer of /v1/models."""
    models = [_model(name, created, max_model_len) for name in names]
    return _encoder.encode({"object": "list", "data": models})


def _model(name: str, created: int, max_model_len: int) -> dict[str, str | int]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "hybridgen",
        "max_model_len": max_model_len,
    }
