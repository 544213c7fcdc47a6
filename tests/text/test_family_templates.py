"""Every family's way to write templates, rendered beside transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatPrompt
from hybridgen.text.chat_template import ChatTemplate
from hybridgen.text.conversation import conversation_of
from tests.text.family_templates import FAMILY_TEMPLATES, QWEN3

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Größe <b> & 'x' \u2028"}},
    "required": ["city"],
}
WEATHER = {"name": "get_weather", "description": "W", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": one} for one in (WEATHER, {"name": "now"})]
SYSTEM = {"role": "system", "content": " Be brief.\n"}
USER = {"role": "user", "content": " What's up? 日本 <b>&\"\n"}
ANSWER = {"role": "assistant", "content": "Well.\n"}
THOUGHT = {"role": "assistant", "content": "Well.", "reasoning_content": "\nHm.\n"}
WRITTEN_THOUGHT = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nWell."}
ARGUMENTS = '{"city": "Zürich", "n": null, "deep": [1, {"a": true}]}'
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "get_weather", "arguments": ARGUMENTS},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"t": 21}\r\n'}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [USER],
    "a system message": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, USER],
    "no turns": [USER, USER],
    "the assistant first": [ANSWER, USER],
    "reasoning": [USER, THOUGHT],
    "past reasoning": [USER, WRITTEN_THOUGHT, USER],
    "a call": [USER, CALL, RESULT],
    "two results": [SYSTEM, USER, CALL, RESULT, RESULT, ANSWER, USER],
}


def rendered_by_transformers(source: str, conversation: Any, **kwargs: Any) -> str | None:
    """None where the template refuses the messages or fails on them."""
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts: Any = render_jinja_template(
            [copy.deepcopy(conversation.messages)],
            tools=copy.deepcopy(conversation.tools),
            chat_template=source,
            add_generation_prompt=True,
            bos_token="<s>",  # noqa: S106  # no password
            eos_token="</s>",  # noqa: S106
            **kwargs,
        )[0]
    except (TemplateError, TypeError):
        return None
    return str(texts[0])


@pytest.mark.parametrize("family", FAMILY_TEMPLATES)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_templates_render_as_in_transformers(family: str, name: str) -> None:
    source = FAMILY_TEMPLATES[family]
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")  # noqa: S106
    for tools in ([], TOOLS):
        for kwargs in ({}, {"enable_thinking": False, "date": "1 May 2026"}):
            prompt = ChatPrompt.of(CONVERSATIONS[name], tools, kwargs)
            conversation = conversation_of(prompt)
            expected = rendered_by_transformers(source, conversation, **kwargs)
            ours: str | None
            try:
                ours = template.render(
                    conversation.messages,
                    tools=conversation.tools,
                    kwargs=conversation.template_kwargs,
                )
            except InvalidRequest:
                ours = None
            assert ours == expected


@pytest.mark.parametrize("family", FAMILY_TEMPLATES)
def test_every_template_takes_what_its_family_takes(family: str) -> None:
    template = ChatTemplate(FAMILY_TEMPLATES[family])
    messages = conversation_of(
        ChatPrompt.of(CONVERSATIONS["turns"][family == "mistral" :])
    ).messages
    assert "What's up?" in template.render(messages)


def test_a_switch_of_the_template_is_seen() -> None:
    template = ChatTemplate(QWEN3)
    messages = conversation_of(ChatPrompt.of([USER])).messages
    assert template.render(messages).endswith("assistant\n")
    off = template.render(messages, kwargs={"enable_thinking": False})
    assert off.endswith("<think>\n\n</think>\n\n")
