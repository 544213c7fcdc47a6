"""``[TOOL_CALLS][{"name": …, "arguments": {…}}]``, and ``[TOOL_CALLS]name[ARGS]{…}``: Mistral."""

from __future__ import annotations

from hybridgen.text.tool_calls.call_format import CallFormat

MISTRAL = CallFormat(
    name="mistral",
    opener="[TOOL_CALLS]",
    takes_plain_name=True,
    inner_marks=("[CALL_ID]", "[ARGS]"),
    around_calls=("[", ", ", "]"),
    template_marks=("[TOOL_CALLS]",),
    # Its templates refuse ids of another form.
    id_prefix="",
    num_id_chars=9,
)
