"""HybridGen: serves large language models with the GPU doing dense arithmetic and nothing else.

The names below are loaded on first use, so that ``import hybridgen`` costs nothing and worker
processes carry only what they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hybridgen.version import __version__

if TYPE_CHECKING:
    from hybridgen import errors
    from hybridgen.client.async_client import AsyncClient
    from hybridgen.client.client import Client
    from hybridgen.llm import LLM
    from hybridgen.request import ChatMessage, ChatPrompt, Grammar, RequestOutput, SamplingParams

__all__ = [
    "LLM",
    "AsyncClient",
    "ChatMessage",
    "ChatPrompt",
    "Client",
    "Grammar",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "errors",
]

_HOMES = {
    "AsyncClient": "hybridgen.client.async_client",
    "ChatMessage": "hybridgen.request",
    "ChatPrompt": "hybridgen.request",
    "Client": "hybridgen.client.client",
    "Grammar": "hybridgen.request",
    "LLM": "hybridgen.llm",
    "RequestOutput": "hybridgen.request",
    "SamplingParams": "hybridgen.request",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("hybridgen.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'hybridgen' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
