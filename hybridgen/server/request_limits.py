"""What a request over HTTP may ask for at most."""

from __future__ import annotations

import msgspec

from hybridgen.server.tool_support import ToolSupport
from hybridgen.text.reasoning import ReasoningFormat


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Checked on the parsed body, before any work is done."""

    max_messages: int = 4096
    """Messages of one conversation."""
    max_depth: int = 64
    """Nesting of objects and arrays in a body."""
    max_choices: int = 128
    """Prompts × n of one request: each is a sequence of its own."""
    max_model_len: int | None = None
    """Context in tokens, where it is known."""
    vocab_size: int | None = None
    """Rows of the model's embedding, where they are known."""
    tools: ToolSupport | None = None
    """How the model writes calls of tools, where that is known."""
    reasoning: ReasoningFormat | None = None
    """How the model marks its reasoning, if it does."""
