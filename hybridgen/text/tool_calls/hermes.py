"""``<tool_call>{"name": …, "arguments": {…}}</tool_call>``: Hermes, Qwen 2.5 and 3, SmolLM."""

from __future__ import annotations

from hybridgen.text.tool_calls.call_format import CallFormat

HERMES = CallFormat(
    name="hermes",
    opener="<tool_call>",
    closer="</tool_call>",
    template_marks=("<tool_call>",),
    # XML in the same tags: Qwen 3 Coder, GLM.
    foreign_marks=("<function=", "<arg_key>"),
)
