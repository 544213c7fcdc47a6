"""Tools for tests, and requests that offer them."""

from __future__ import annotations

import json
from typing import Any

from hybridgen.server.generation import Generation
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.schema import read_chat
from hybridgen.server.tool_support import ToolSupport
from hybridgen.text.tool_calls.hermes import HERMES

SUPPORT = ToolSupport(HERMES)
LIMITS = RequestLimits(max_model_len=1000, tools=SUPPORT)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, **keys: Any) -> dict[str, Any]:
    """A tool as clients send it."""
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **keys}}


TOOLS = [tool("get_weather"), tool("get_time")]


def ask(limits: RequestLimits = LIMITS, **keys: Any) -> Generation:
    """A chat that offers TOOLS, unless ``keys`` say otherwise."""
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **keys}
    return read_chat(json.dumps(body).encode(), limits)
