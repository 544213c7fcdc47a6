"""A model's chat template: messages → the text that the model was trained to answer."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from hybridgen.errors import BadModelFile, InvalidRequest, UnsupportedModel
from hybridgen.request import ChatMessage
from hybridgen.text.conversation import message_view
from hybridgen.text.cpu_limit import CpuLimit, CpuTimeSpent
from hybridgen.text.size_budget import SizeExceeded
from hybridgen.text.template_sandbox import TemplateSandbox
from hybridgen.text.template_source import MAX_SOURCE_CHARS

MAX_OUTPUT_BYTES = 2**20
CPU_LIMIT_S = 1.0
_REMEDY = "Give a correct one with --chat-template FILE"

#: What a template may run into by itself when messages are not what it expects.
_TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
_DATE_FORMAT = re.compile(r"(?:%[A-Za-z%]|[^%]){0,64}")


Messages = Sequence[ChatMessage | Mapping[str, Any]]


class RefusedByTemplate(Exception):
    """The template called raise_exception."""


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja source.
        bos_token: text that the template knows under this name; likewise ``eos_token``.
        now_s: wall clock for ``strftime_now``, seconds since the epoch (shown as UTC).
        cpu_limit_s: CPU time that compiling, and all renderings of one prompt, may take.

    Attributes:
        is_timeless: the same messages give the same text at any time.

    Raises:
        BadModelFile: the source is not a template that can be compiled within the limits.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now_s: Callable[[], float] = time.time,
        cpu_limit_s: float = CPU_LIMIT_S,
    ) -> None:
        self._now_s = now_s
        self._cpu_limit_s = cpu_limit_s
        self._constants = {
            "bos_token": bos_token,
            "eos_token": eos_token,
        }
        self.is_timeless = "strftime_now" not in source
        self._compile(source)

    def _compile(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise BadModelFile(
                "the chat template is too long",
                field="chat_template",
                value=len(source),
                limit=MAX_SOURCE_CHARS,
                remedy=_REMEDY,
            )
        self._sandbox = sandbox = TemplateSandbox()
        sandbox.globals |= {"raise_exception": _refuse, "strftime_now": self._strftime_now}
        self._globals = {**sandbox.globals, "documents": None}
        try:
            with CpuLimit(self._cpu_limit_s):
                self._template = sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise BadModelFile(
                f"the chat template cannot be compiled: {error.message}",
                field="chat_template",
                value=f"line {error.lineno}",
                remedy=_REMEDY,
            ) from error
        except (*_TEMPLATE_FAULTS, SizeExceeded, SyntaxError, CpuTimeSpent) as error:
            raise BadModelFile(
                f"the chat template cannot be compiled: {type(error).__name__} {error}".rstrip(),
                field="chat_template",
                limit=f"{self._cpu_limit_s} s CPU, moderate nesting",
                remedy=_REMEDY,
            ) from error

    @contextlib.contextmanager
    def cpu_limit(self) -> Iterator[None]:
        """A limit on the CPU time of all that is rendered inside.

        Raises:
            InvalidRequest: it was reached.
        """
        try:
            with CpuLimit(self._cpu_limit_s):
                yield
        except CpuTimeSpent as error:
            limit = f"{self._cpu_limit_s} s of CPU time"
            raise _invalid("the chat template takes too long", limit=limit) from error

    def render(self, messages: Messages, **options: Any) -> str:
        """``render_unlimited`` within ``cpu_limit``."""
        with self.cpu_limit():
            return self.render_unlimited(messages, **options)

    def render_unlimited(
        self,
        messages: Messages,
        add_generation_prompt: bool = True,
        *,
        tools: list[dict[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> str:
        """The conversation as one text, under the caller's limit on CPU time.

        Args:
            messages: oldest first.
            add_generation_prompt: the text ends where the assistant's next turn begins.
            tools: as OpenAI's API has them.
            kwargs: further variables; none that the template is given anyway.
            max_output_bytes: in UTF-8.

        Raises:
            InvalidRequest: the template refuses these messages, fails on them, or exceeds its
                output limit. UnsupportedModel: it wants something that templates are
                not given.
        """
        variables = {
            **self._globals,
            **(kwargs or {}),
            **self._constants,
            "messages": [
                message_view(turn) if isinstance(turn, ChatMessage) else dict(turn)
                for turn in messages
            ],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._render(variables, max_output_bytes)
        except RefusedByTemplate as error:
            raise _invalid(f"the chat template refuses the messages: {error}") from error
        except SizeExceeded as error:
            raise _invalid(
                "the chat template makes too much text",
                value=str(error),
                limit=f"{max_output_bytes} bytes",
            ) from error
        except SecurityError as error:
            raise UnsupportedModel(
                f"the chat template asks for something that is not available: {error}",
                remedy="Give another one with --chat-template FILE",
            ) from error
        except _TEMPLATE_FAULTS as error:
            kind = type(error).__name__
            raise _invalid(f"the chat template fails on these messages: {kind} {error}") from error

    def _render(self, variables: dict[str, Any], max_bytes: int) -> str:
        self._sandbox.budget.reset()
        pieces: list[str] = []
        num_chars = 0
        # Shared: the variables are the context, globals among them; nothing is copied again.
        context = self._template.new_context(variables, shared=True)
        for piece in self._template.root_render_func(context):
            num_chars += len(piece)
            if num_chars > max_bytes:
                raise SizeExceeded(f"{num_chars} bytes or more")
            pieces.append(piece)
        text = "".join(pieces)
        num_bytes = num_chars if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if num_bytes > max_bytes:
            raise SizeExceeded(f"{num_bytes} bytes")
        return text

    def _strftime_now(self, date_format: str) -> str:
        if not _DATE_FORMAT.fullmatch(date_format):
            raise SizeExceeded("a date format with widths, or a long one")
        return time.strftime(date_format, time.gmtime(self._now_s()))


def _refuse(message: object = "") -> NoReturn:
    raise RefusedByTemplate(str(message)[:1000])


def _invalid(message: str, **fields: str) -> InvalidRequest:
    return InvalidRequest(
        message[:2000],
        param="messages",
        remedy="Send messages that the model's template accepts, or another template",
        **fields,
    )
