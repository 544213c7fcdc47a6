from __future__ import annotations

import typing

import pytest

from hybridgen.config import ModelSection
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.text.tool_calls.registry import FORMATS, TOOL_MARKS, call_format, has_tools

#: The words that tell templates apart, as the models' own have them.
TEMPLATES = {
    "hermes": "{% if tools %}<tool_call>\n{{ tool_call.arguments | tojson }}{% endif %}",
    "mistral": "{% if tools is not none %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]",
    "llama3_json": "{% if tools %}<|start_header_id|>{{ '\"parameters\": ' }}{% endif %}",
    None: "{% if tools %}<tool_call><function={{ tool.name }}>{% endif %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_tells_the_format(name: str | None) -> None:
    found = call_format(TEMPLATES[name])
    assert (found.name if found else None) == name


def test_a_model_whose_template_knows_no_tools_gets_the_usual_format(
    smollm2_spec: TokenizerSpec,
) -> None:
    template = smollm2_spec.chat_template
    assert template is not None
    assert not has_tools(template)
    assert call_format(template) is FORMATS["hermes"]
    assert not has_tools("{# tools #}{{ messages }}")


def test_a_named_format_is_taken_and_none_is_none() -> None:
    assert call_format(TEMPLATES["hermes"], "mistral") is FORMATS["mistral"]
    assert call_format(TEMPLATES["hermes"], "none") is None
    assert call_format(None) is None


def test_every_format_can_be_asked_for() -> None:
    words = typing.get_args(typing.get_type_hints(ModelSection)["tool_call_parser"])
    assert words == ("auto", "none", *sorted(FORMATS))


def test_marks_are_those_of_all_formats() -> None:
    assert {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"} <= TOOL_MARKS
    assert "" not in TOOL_MARKS
