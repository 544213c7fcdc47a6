"""Prompts → token ids: text, ids or messages, checked and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hybridgen.errors import ContextLengthExceeded, InvalidRequest
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.request import MAX_BYTES_PER_TOKEN, ChatPrompt, IdsPrompt, Prompt, TextPrompt
from hybridgen.text.chat_template import MAX_OUTPUT_BYTES, ChatTemplate
from hybridgen.text.conversation import Conversation, conversation_of, texts_of
from hybridgen.text.shape_cache import ShapeCache
from hybridgen.text.special_guard import SpecialGuard
from hybridgen.text.template_kwargs import check_template_kwargs
from hybridgen.text.template_source import template_source
from hybridgen.text.tokenizer import Tokenizer, build_tokenizer, check_text
from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.registry import DEFAULT, call_format, has_tools
from hybridgen.text.tool_calls.tool_prompt import spell_out

MAX_MESSAGES = 4096
_GUARDED_BYTES = 5  # at most: a character of one byte with a guard of three before it, and slack


class PromptEncoder:
    """Encodes prompts of one model.

    Args:
        tokenizer: the model's.
        template: the model's chat template, or None when it has none.
        max_model_len: context length in tokens, of which a prompt must leave one; None checks
            no length.
        bos_id: put before plain text prompts; None puts nothing.
        template_has_tools: the template shows tools itself; else they are put into words for it.
        call_format: how those words say that calls are written.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        max_model_len: int | None = None,
        bos_id: int | None = None,
        template_has_tools: bool = True,
        call_format: CallFormat = DEFAULT,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._template_has_tools = template_has_tools
        self._call_format = call_format
        self._max_model_len = max_model_len
        self._prefix = [] if bos_id is None else [bos_id]
        self._guard = SpecialGuard(tokenizer.specials)
        if template is not None:
            render = partial(_render, template, max_bytes=MAX_OUTPUT_BYTES * _GUARDED_BYTES)
            self._render_marked = ShapeCache(render).render if template.is_timeless else render

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of ``prompt``. Special-token text that a user wrote stays text.

        A text gets the BOS if the model wants one; messages get what the template writes; ids
        stay as they are.

        Raises:
            InvalidRequest: empty, malformed, ids outside the vocabulary, refused by the template.
            ContextLengthExceeded: longer than the context.
        """
        if isinstance(prompt, TextPrompt):
            ids = self._encode_text(prompt.text)
        elif isinstance(prompt, IdsPrompt):
            self._check_tokens(len(prompt.ids))
            ids = self._tokenizer.vocabulary.check_ids(prompt.ids)
        else:
            ids = self._encode_chat(prompt)
        if not ids:
            raise _empty()
        self._check_tokens(len(ids))
        return ids

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            raise _empty()
        self._check_bytes([text])
        return self._prefix + self._tokenizer.encode(text)

    def _encode_chat(self, prompt: ChatPrompt) -> list[int]:
        template = self._template
        if template is None:
            raise InvalidRequest(
                "this model has no chat template",
                param="messages",
                remedy="Send a text prompt, or start with --chat-template FILE",
            )
        messages = prompt.messages
        if not 0 < len(messages) <= MAX_MESSAGES:
            raise InvalidRequest(
                "a conversation needs messages, and not too many",
                param="messages",
                value=len(messages),
                limit=f"[1, {MAX_MESSAGES}]",
                remedy="Send at least the user's message",
            )
        check_template_kwargs(prompt.template_kwargs)
        self._check_bytes(texts_of(prompt))
        conversation = self._for_template(conversation_of(prompt))

        def render(turns: Conversation) -> str:
            if turns is conversation:
                return _render(template, turns, MAX_OUTPUT_BYTES)
            return self._render_marked(turns)

        with template.cpu_limit():
            parts = [*self._guard.split(render, conversation)]
        return self._tokenizer.encode_parts(parts)

    def _for_template(self, conversation: Conversation) -> Conversation:
        """With tools, calls and results in words where the template knows nothing of them."""
        uses_tools = conversation.tools or any(
            message["role"] == "tool" or "tool_calls" in message
            for message in conversation.messages
        )
        if not uses_tools or self._template_has_tools:
            return conversation
        return spell_out(conversation, self._call_format)

    def _check_bytes(self, texts: Sequence[str]) -> None:
        num_bytes = sum(len(check_text(text)) for text in texts)
        if self._max_model_len is None:
            return
        limit = MAX_BYTES_PER_TOKEN * self._max_model_len
        if num_bytes > limit:
            raise ContextLengthExceeded(
                "the prompt has more bytes than the context could hold",
                param="prompt",
                value=num_bytes,
                limit=limit,
                remedy="Send a shorter prompt",
            )

    def _check_tokens(self, num_tokens: int) -> None:
        if self._max_model_len is not None and num_tokens >= self._max_model_len:
            raise ContextLengthExceeded(
                "the prompt leaves no room in the context",
                param="prompt",
                value=num_tokens,
                limit=self._max_model_len - 1,
                remedy="Send a shorter prompt",
            )


def _render(template: ChatTemplate, turns: Conversation, max_bytes: int) -> str:
    return template.render_unlimited(
        turns.messages,
        tools=turns.tools,
        kwargs=turns.template_kwargs,
        max_output_bytes=max_bytes,
    )


def build_prompt_encoder(
    spec: TokenizerSpec,
    template_file: str = "",
    *,
    max_model_len: int | None = None,
    tool_call_parser: str = "auto",
) -> PromptEncoder:
    """The encoder that ``spec`` asks for; the template in ``template_file`` replaces its own.

    Raises:
        BadModelFile: tokenizer or chat template are damaged. UnsupportedModel: a tokenizer of a
            kind that is not implemented. ConfigError: the template file cannot be read.
    """
    tokenizer = build_tokenizer(spec)
    source = template_source(spec, template_file)
    template = None
    if source:
        eos_id = spec.eos_ids[0] if spec.eos_ids else None
        template = ChatTemplate(
            source,
            bos_token=_special_text(tokenizer, spec.bos_id),
            eos_token=_special_text(tokenizer, eos_id),
        )
    bos_id = spec.bos_id if spec.add_bos else None
    return PromptEncoder(
        tokenizer,
        template,
        max_model_len=max_model_len,
        bos_id=bos_id,
        template_has_tools=has_tools(source or ""),
        call_format=call_format(source, tool_call_parser) or DEFAULT,
    )


def _special_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_bytes[token_id].decode("utf-8", "replace")


def _empty() -> InvalidRequest:
    return InvalidRequest(
        "the prompt is empty", param="prompt", value=0, limit="at least one token",
        remedy="Send a text, ids or messages",
    )  # fmt: skip
