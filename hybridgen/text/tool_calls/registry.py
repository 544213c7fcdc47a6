"""The formats there are, and which of them a model's chat template asks for."""

from __future__ import annotations

import re

from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.hermes import HERMES
from hybridgen.text.tool_calls.llama3_json import LLAMA3_JSON
from hybridgen.text.tool_calls.mistral import MISTRAL

#: In the order in which templates are looked at.
FORMATS: dict[str, CallFormat] = {
    format_.name: format_
    for format_ in (
        HERMES,
        MISTRAL,
        LLAMA3_JSON,
    )
}  # fmt: skip
#: For templates that know nothing of tools: most models have seen this one.
DEFAULT = HERMES

#: Texts that stand between calls and the rest, some of which are special tokens of their models.
TOOL_MARKS = frozenset(mark for one in FORMATS.values() for mark in one.marks)

_TOOLS = re.compile(r"\btools\b")
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def has_tools(template: str) -> bool:
    """Whether a chat template shows tools by itself."""
    return _TOOLS.search(_COMMENT.sub("", template)) is not None


def call_format(template: str | None, wanted: str = "auto") -> CallFormat | None:
    """The format of a model's calls.

    Args:
        template: source of its chat template; None when it has none.
        wanted: ``auto`` looks at the template, ``none`` is none, else the name of a format.

    Returns:
        None when there is none, or none that is known.
    """
    if template is None or wanted == "none":
        return None
    if wanted != "auto":
        return FORMATS[wanted]
    if not has_tools(template):
        return DEFAULT
    return next((one for one in FORMATS.values() if _fits(one, template)), None)


def _fits(format_: CallFormat, template: str) -> bool:
    return all(mark in template for mark in format_.template_marks) and not any(
        mark in template for mark in format_.foreign_marks
    )
