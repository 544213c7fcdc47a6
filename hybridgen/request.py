"""What a user asks for and what comes back: the nouns that every layer shares."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from hybridgen.errors import InvalidRequest
from hybridgen.tool import Tool, ToolCall, as_tools

# Limits that the shared-memory slot record (ipc/layout.h) and the HTTP front door both obey.
MAX_STOP_STRINGS = 4
MAX_STOP_BYTES = 256
MAX_STOP_REGEX_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 512
MAX_LOGPROBS = 20
MAX_TEMPERATURE = 100.0
MAX_LOGIT_BIAS_VALUE = 100.0
MAX_SHOWN_BITS = 256
MAX_SEED = 2**64 - 1
#: Hardly a text has more: prompts with more for each token of the context are refused unread.
MAX_BYTES_PER_TOKEN = 8
#: A greater priority goes first; 0 is usual.
MAX_PRIORITY = 1000
MAX_GRAMMAR_BYTES = 65_536
#: Length of a request id and of a client's identity.
ID_BYTES = 16
MAX_TIMEOUT_S = 86_400.0


class FinishReason(enum.IntEnum):
    """Why a request ended. The numbers are the ones stored in the slot record."""

    NONE = 0
    STOP = 1  # end-of-text id or one of stop_token_ids
    LENGTH = 2  # max_tokens or the context is used up
    STOP_STRING = 3  # a stop string matched
    CANCELLED = 4
    ERROR = 5

    @property
    def public_name(self) -> str | None:
        """The word clients see; ``None`` while the request runs."""
        return _PUBLIC_NAMES[self]


_PUBLIC_NAMES = {
    FinishReason.NONE: None,
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.STOP_STRING: "stop",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.ERROR: "error",
}


GrammarKind = Literal["json_object", "json_schema", "regex", "lark"]


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a text must look like. Every token that is chosen keeps it possible to get there."""

    kind: GrammarKind
    """What ``text`` is; a json_object has none."""
    text: str = ""
    """A JSON schema (as JSON), a regular expression, or a Lark grammar; at most 64 KiB."""
    param: str = "grammar"
    """What errors call it: the name of the key that it came from."""

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool, param: str = "grammar") -> Grammar:
        """JSON that the schema describes."""
        return cls("json_schema", json.dumps(schema, ensure_ascii=False), param)

    @classmethod
    def choice(cls, texts: Sequence[str], param: str = "grammar") -> Grammar:
        """Exactly one of ``texts``."""
        options = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        return cls("lark", f"start: {options}", param)

    def validate(self) -> None:
        """Check what can be seen without compiling it, which the server does.

        Raises:
            InvalidRequest: with fields ``param``, ``value``, ``limit`` and ``remedy``.
        """
        num_bytes = _num_bytes(self.text, self.param)
        fewest = 0 if self.kind == "json_object" else 1
        most = 0 if self.kind == "json_object" else MAX_GRAMMAR_BYTES
        if not fewest <= num_bytes <= most:
            raise InvalidRequest(
                f"{self.param} is too long" if num_bytes else f"{self.param} is empty",
                param=self.param,
                value=f"{num_bytes} bytes",
                limit=f"[{fewest}, {most}] bytes",
                remedy="Give less" if num_bytes else "Give some, or leave it out",
            )


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen. Names and meanings follow the field's conventions."""

    temperature: float = 1.0
    """Divides the logits; 0 means greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches this, in (0, 1]."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one, in [0, 1]."""
    repetition_penalty: float = 1.0
    """Divides positive, multiplies negative logits of tokens seen in prompt or output; > 0."""
    presence_penalty: float = 0.0
    """Subtracted once from logits of tokens seen in the output, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output, in [-2, 2]."""
    logit_bias: dict[int, float] = {}
    """Token id → value added to its logit, in [-100, 100]."""
    seed: int | None = None
    """Philox key, 0 … 2⁶⁴-1. Without one the server draws one and reports it."""
    max_tokens: int | None = None
    """Most tokens to generate; ``None`` means whatever fits the context."""
    min_tokens: int = 0
    """End-of-text and stop ids cannot be chosen before this many tokens."""
    stop: tuple[str, ...] = ()
    """Text ends before the first of these; at most 4, at most 256 bytes each."""
    stop_regex: str | None = None
    """Text ends before the first match of this regular expression; at most 256 bytes."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the text, besides the model's own; at most 64."""
    ignore_eos: bool = False
    """Do not end at the model's end-of-text ids."""
    include_stop_str_in_output: bool = False
    """Keep the matched stop string, or what stop_regex matched, at the end of the text."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text (ids always carry them)."""
    keep_tool_marks: bool = False
    """Leave special tokens that mark calls of tools in the text all the same."""
    keep_reasoning_marks: bool = False
    """The same for those that mark reasoning; a mark that the prompt ends with begins the text."""
    logprobs: int | None = None
    """Report the log-probability of each chosen token and of this many best ones, 0 … 20."""
    grammar: Grammar | None = None
    """What the text must look like; end-of-text comes when it is complete."""

    def validate(self, vocab_size: int | None = None) -> None:
        """Check every bound, and token ids against ``vocab_size`` where it is known.

        Raises:
            InvalidRequest: with fields ``param``, ``value``, ``limit`` and ``remedy``.
        """
        _check_range("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _check_range("top_k", self.top_k, -1, 2**31 - 1)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None:
            _check_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
            _check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.seed is not None:
            _check_range("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _check_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        self._validate_stops(vocab_size)
        self._validate_bias(vocab_size)
        self._validate_grammar()

    def _validate_stops(self, vocab_size: int | None) -> None:
        _check_range("stop (count)", len(self.stop), 0, MAX_STOP_STRINGS)
        for text in self.stop:
            _check_range("stop (bytes of one string)", _num_bytes(text, "stop"), 1, MAX_STOP_BYTES)
        if self.stop_regex is not None:  # the server compiles it
            num_bytes = _num_bytes(self.stop_regex, "stop_regex")
            _check_range("stop_regex (bytes)", num_bytes, 1, MAX_STOP_REGEX_BYTES)
        _check_range("stop_token_ids (count)", len(self.stop_token_ids), 0, MAX_STOP_TOKEN_IDS)
        for token_id in self.stop_token_ids:
            _check_token_id("stop_token_ids", token_id, vocab_size)

    def _validate_bias(self, vocab_size: int | None) -> None:
        _check_range("logit_bias (count)", len(self.logit_bias), 0, MAX_LOGIT_BIAS)
        for token_id, bias in self.logit_bias.items():
            _check_token_id("logit_bias", token_id, vocab_size)
            _check_range("logit_bias (value)", bias, -MAX_LOGIT_BIAS_VALUE, MAX_LOGIT_BIAS_VALUE)

    def _validate_grammar(self) -> None:
        if self.grammar is None:
            return
        self.grammar.validate()
        if self.ignore_eos:
            raise InvalidRequest(
                "a text with a grammar ends where the grammar does",
                param="ignore_eos",
                value=True,
                limit=False,
                remedy=f"Leave out ignore_eos or {self.grammar.param}",
            )


def _num_bytes(text: str, param: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} holds a lone surrogate",
            param=param,
            value=ascii(text[error.start]),
            remedy="Pass valid text",
        ) from None


def _check_range(
    param: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    # Written so that NaN fails; an integer too long for a float compares like any other.
    if (low < value if open_low else low <= value) and value <= high:
        return
    bracket = "(" if open_low else "["
    raise InvalidRequest(
        f"{param} is out of range",
        param=param,
        value=_shown(value),
        limit=f"{bracket}{low}, {high}]",
        remedy=f"Give {param} a value inside the limit",
    )


def _shown(value: float) -> float | str:
    """As an error can carry and print it: neither NaN nor infinite, nor an endless integer."""
    if isinstance(value, float):
        return value if -math.inf < value < math.inf else str(value)
    is_long = value.bit_length() > MAX_SHOWN_BITS
    return f"an integer of {value.bit_length()} bits" if is_long else value


def _check_token_id(param: str, token_id: int, vocab_size: int | None) -> None:
    limit = vocab_size if vocab_size is not None else 2**31
    if not 0 <= token_id < limit:
        raise InvalidRequest(
            f"{param} names a token id outside the vocabulary",
            param=param,
            value=_shown(token_id),
            limit=f"[0, {limit})",
            remedy="Use ids of this model's tokenizer",
        )


def check_timeout(timeout_s: float | None) -> None:
    """Refuse a deadline that is none; ``None`` leaves it to the server.

    Raises:
        InvalidRequest: not a number of seconds above 0 and up to a day.
    """
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is None or (is_number and 0.0 < timeout_s <= MAX_TIMEOUT_S):
        return
    raise InvalidRequest(
        "timeout_s is out of range",
        param="timeout_s",
        value=_shown(timeout_s) if is_number else type(timeout_s).__name__,
        limit=f"(0, {MAX_TIMEOUT_S:g}]",
        remedy="Give the seconds that the request may take in all, or None for the server's limit",
    )


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: str
    content: str
    name: str | None = None
    """Tells participants of one role apart, for templates that know of it."""
    tool_calls: list[ToolCall] = []
    """What the assistant asked for; ``content`` may then be empty."""
    tool_call_id: str | None = None
    """The call whose result a message of role ``tool`` brings."""
    reasoning_content: str | None = None
    """What the assistant thought before it answered, for templates that show it."""


class TextPrompt(msgspec.Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """Plain text, encoded as it stands (special tokens in it stay text)."""

    text: str


class IdsPrompt(msgspec.Struct, frozen=True, tag="ids", forbid_unknown_fields=True):
    """Token ids, used as they stand."""

    ids: list[int]


class ChatPrompt(
    msgspec.Struct, frozen=True, tag="chat", omit_defaults=True, forbid_unknown_fields=True
):
    """A conversation, rendered by the model's chat template."""

    messages: list[ChatMessage]
    tools: list[Tool] = []
    """Functions that the model may call."""
    template_kwargs: dict[str, Any] = {}
    """Variables for the template, as JSON has values; ``enable_thinking`` is one of Qwen 3's."""

    @classmethod
    def of(
        cls,
        messages: Sequence[dict[str, Any]] | Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any] | Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """A conversation and tools as users write them, which is as OpenAI's API has them.

        Raises:
            InvalidRequest: naming the message or the tool that is malformed.
        """
        offered, prompt = as_tools(tools), as_prompt(messages)
        if not isinstance(prompt, ChatPrompt):
            raise InvalidRequest(
                "a conversation is a list of messages",
                param="messages",
                value=type(messages).__name__,
                remedy="Pass [{'role': …, 'content': …}, …]",
            )
        return cls(prompt.messages, offered, dict(template_kwargs or {}))


Prompt = TextPrompt | IdsPrompt | ChatPrompt
PromptLike = str | Sequence[int] | Sequence[dict[str, Any]] | Sequence[ChatMessage] | Prompt


def as_prompt(prompt: PromptLike) -> Prompt:
    """Turn what users write — a text, ids, or messages — into a ``Prompt``.

    Raises:
        InvalidRequest: for anything else, naming the type.
    """
    if isinstance(prompt, TextPrompt | IdsPrompt | ChatPrompt):
        return prompt
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if isinstance(prompt, Sequence) and prompt and not isinstance(prompt, bytes):
        items = list(prompt)
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return IdsPrompt(items)  # type: ignore[arg-type]  # every item was just checked
        if all(isinstance(item, dict | ChatMessage) for item in items):
            try:
                messages = [_with_content(item) for item in items]
                return ChatPrompt(msgspec.convert(messages, list[ChatMessage]))
            except msgspec.ValidationError as error:
                raise InvalidRequest(
                    f"a message is malformed: {error}",
                    param="messages",
                    remedy="Give each message a text 'role' and a text 'content'",
                ) from None
    is_something = not isinstance(prompt, Sequence) or len(prompt) > 0
    raise InvalidRequest(
        "a prompt must be a text, a list of token ids, or a list of messages",
        param="prompt",
        value=type(prompt).__name__ if is_something else "an empty prompt",
        remedy="Pass str, list[int], or [{'role': …, 'content': …}, …]",
    )


def _with_content(message: Any) -> Any:
    """A message with nothing but calls may leave its content out, or null."""
    if isinstance(message, dict) and message.get("content") is None and message.get("tool_calls"):
        return {**message, "content": ""}
    return message


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of a chosen token and of the best ones at its position."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []
    """(token id, log-probability), best first; as many as were asked for."""


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request."""

    prompt_token_ids: list[int] | None = None
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    """Of the prompt, tokens that were found in the KV cache and not computed again."""
    token_ids: list[int]
    text: str
    finish_reason: str
    logprobs: list[TokenLogprob] | None = None
    seed: int
