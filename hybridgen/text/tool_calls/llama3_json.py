"""``{"name": …, "parameters": {…}}``, after ``<|python_tag|>`` or bare: Llama 3.1 to 3.3."""

from __future__ import annotations

from hybridgen.text.tool_calls.call_format import CallFormat

LLAMA3_JSON = CallFormat(
    name="llama3_json",
    opener="<|python_tag|>",
    is_opener_rare=True,
    arguments_key="parameters",
    around_calls=("", "; ", ""),
    template_marks=("<|start_header_id|>", '"parameters": '),
)
