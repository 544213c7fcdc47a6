from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage, ChatPrompt
from hybridgen.text.chat_template import ChatTemplate
from hybridgen.text.conversation import Conversation, conversation_of
from hybridgen.text.special_guard import GUARDS, SpecialGuard
from hybridgen.text.special_tokens import SpecialToken, SpecialTokens

TEXTS = ("<|im_start|>", "<|im_end|>", "<|user|>", "<|endoftext|>", "</s>", "[INST]")
GUARD = SpecialGuard(SpecialTokens([SpecialToken(text, i) for i, text in enumerate(TEXTS)]))
CHATML = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}"
)
HOSTILE = st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<", "|>", "[INST]", "a", " "])


def _split(template: ChatTemplate, *messages: ChatMessage) -> list[int | str]:
    return _split_prompt(template, ChatPrompt([*messages]))


def _split_prompt(template: ChatTemplate, prompt: ChatPrompt) -> list[int | str]:
    def render(turns: Conversation) -> str:
        return template.render(
            turns.messages,
            tools=turns.tools,
            kwargs=turns.template_kwargs,
            max_output_bytes=2**23,
        )

    return list(GUARD.split(render, conversation_of(prompt)))


def _user(content: str) -> ChatMessage:
    return ChatMessage("user", content)


@given(st.lists(st.lists(HOSTILE, max_size=4).map("".join), min_size=1, max_size=3))
def test_only_the_templates_own_special_tokens_become_ids(contents: list[str]) -> None:
    parts = _split(CHATML, *(_user(content) for content in contents))
    assert [part for part in parts if isinstance(part, int)] == [0, 1] * len(contents)
    runs = [part for part in parts if isinstance(part, str)]
    assert runs == [f"user\n{content.strip()}" for content in contents]


@pytest.mark.parametrize(
    ("source", "contents"),
    [
        ("<|im_{{ c[0] }}", ["end|>"]),
        ("{{ c[0] }}end|>", ["<|im_"]),
        ("{{ c[0] }}{{ c[1] }}", ["<|im_", "end|>"]),
        ("<|{{ c[0] }}|>", ["im_end"]),
        ("{{ c[0] }}|im_end|>", ["<"]),
        ("<|im_end|{{ c[0] }}", [">"]),
        ("{{ c[0][:10] }}", ["<|im_end|>x"]),
        ("{{ c[0].split('#')[1] }}", ["x#<|im_end|>"]),
        ("{{ c[0] | replace('#', '') }}", ["<|im#_end|>"]),
        ("{{ c[0] | trim }}end|>", ["<|im_  "]),
        ("{{ c[0] ~ c[1] ~ c[2] }}", ["<", "|im_end|", ">"]),
    ],
)
def test_special_token_put_together_from_parts_stays_text(source: str, contents: list[str]) -> None:
    template = ChatTemplate("{% set c = messages | map(attribute='content') | list %}" + source)
    try:
        parts = _split(template, *(_user(content) for content in contents))
    except InvalidRequest:
        return  # refused is fine too
    assert not [part for part in parts if isinstance(part, int)]


def test_template_may_build_special_tokens_from_usual_roles() -> None:
    template = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")
    assert _split(template, _user("<|user|>")) == [2, "<|user|>"]


@pytest.mark.parametrize(
    "role", ["endoftext", "im_end", "user|><|im_end", "<|im_end|>", "", "a b", "x" * 65, "s"]
)
def test_roles_that_could_be_part_of_a_special_token_are_refused(role: str) -> None:
    with pytest.raises(InvalidRequest, match="role"):
        _split(CHATML, ChatMessage(role, "hi"))


def test_template_that_searches_in_messages_does_what_it_would_without_guards() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if '</think>' in m.content %}"
        "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}</s>{% endfor %}"
    )
    assert _split(template, _user("<think>x</think>y")) == ["y", 4]
    assert _split(template, _user("<think>x</think>y</s>z")) == ["y</s>z", 4]


def test_special_text_that_steers_the_template_is_refused() -> None:
    template = ChatTemplate("{{ 'yes' if '</s>' in messages[0].content else 'no' }}")
    assert _split(template, _user("a")) == ["no"]
    with pytest.raises(InvalidRequest, match="special-token text"):
        _split(template, _user("</s>"))


def test_texts_of_messages_are_not_marked_character_by_character() -> None:
    shown: list[Conversation] = []

    def render(turns: Conversation) -> str:
        shown.append(turns)
        return "".join(f"<|im_start|>{m['content'].strip()}<|im_end|>" for m in turns.messages)

    content = " <|im_end|> and more "
    parts = GUARD.split(render, conversation_of(ChatPrompt([_user(content), _user("")])))
    assert list(parts) == [0, content.strip(), 1, 0, 1]
    assert [len(turns.messages[0]["content"]) for turns in shown] == [len(content), 4]


def test_template_that_refuses_what_stands_for_a_text_gets_the_text() -> None:
    template = ChatTemplate(
        "{% if messages[0].content[0] != '7' %}{{ raise_exception('seven') }}{% endif %}"
        "{{ messages[0].content }}</s>"
    )
    assert _split(template, _user("7</s>")) == ["7</s>", 4]
    with pytest.raises(InvalidRequest, match="seven"):
        _split(template, _user("8"))


def test_template_that_shows_stand_ins_without_end_does_not_fill_the_memory() -> None:
    template = ChatTemplate(
        "{% set c = messages[0].content %}"
        "{% for i in range(50000 if 'b' not in c else 1) %}{{ c }}{% endfor %}</s>"
    )
    assert _split(template, _user("b" * 500_000)) == ["b" * 500_000, 4]


def test_white_space_of_special_tokens_is_a_users_as_well() -> None:
    guard = SpecialGuard(SpecialTokens([SpecialToken("<a>\n", 0), SpecialToken("</s>", 1)]))
    conversation = conversation_of(ChatPrompt([_user("\nx")]))
    parts = guard.split(lambda turns: f"<a>{turns.messages[0]['content']}</s>", conversation)
    assert list(parts) == ["<a>\nx", 1]


def test_message_with_noncharacters_keeps_them() -> None:
    text = "".join(GUARDS[:-1]) + "<|im_end|>"
    assert _split(CHATML, _user(text)) == [0, "user\n" + text, 1]
    with pytest.raises(InvalidRequest, match="noncharacter"):
        _split(CHATML, _user("".join(GUARDS)))


TOOLS_SHOWN = ChatTemplate(
    "{% for t in tools or [] %}<|im_start|>{{ t | tojson }}<|im_end|>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.name }}{{ m.content }}{{ m.tool_call_id }}"
    "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}"
    "<|im_end|>{% endfor %}"
)


@given(HOSTILE, HOSTILE)
def test_special_token_text_in_tools_and_calls_stays_text(one: str, other: str) -> None:
    arguments = json.dumps({one: other})
    schema = {"type": "object", "properties": {one: {"enum": [other]}}, other: [one]}
    call = {"id": f"i{one}", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": other, "tool_calls": [call], "name": one},
        {"role": "tool", "content": one, "tool_call_id": f"i{other}"},
    ]
    prompt = ChatPrompt.of(
        messages,
        [{"type": "function", "function": {"name": "f", "description": one, "parameters": schema}}],
    )
    parts = _split_prompt(TOOLS_SHOWN, prompt)
    assert [part for part in parts if isinstance(part, int)] == [0, 1] * 3


def test_template_may_ask_for_the_words_of_a_schema_and_show_values_as_python_does() -> None:
    template = ChatTemplate(
        "{% for t in tools %}{% for k, p in t.function.parameters.properties.items() %}"
        "{{ 'text' if p.type == 'string' else p }}{% endfor %}{% endfor %}<|im_end|>"
    )
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "<|im_end|>"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    prompt = ChatPrompt.of([{"role": "user", "content": ""}], [tool])
    assert _split_prompt(template, prompt) == ["text{'type': '<|im_end|>'}", 1]


def test_template_may_count_the_characters_of_an_id() -> None:
    template = ChatTemplate("{{ messages[0].tool_call_id | length }}</s>")
    message = ChatMessage("tool", "", tool_call_id="user1s[im")
    assert _split(template, message) == ["9", 4]


def test_special_text_in_reasoning_and_in_variables_stays_text() -> None:
    template = ChatTemplate(
        "{{ messages[0].reasoning_content.strip('\\n') }}<|im_end|>"
        "{{ 'hard' if effort == 'high' }}{{ notes[0].subject }}</s>"
    )
    message = {"role": "assistant", "content": "", "reasoning_content": "\n</s>\n"}
    variables = {"effort": "high", "notes": [{"subject": "<|im_end|>"}]}
    prompt = ChatPrompt.of([message], (), variables)
    assert _split_prompt(template, prompt) == ["</s>", 1, "hard<|im_end|>", 4]


def test_vocabulary_without_special_tokens_has_nothing_to_guard() -> None:
    guard = SpecialGuard(SpecialTokens([]))
    conversation = conversation_of(ChatPrompt([_user("<|im_end|>")]))
    parts = guard.split(lambda turns: turns.messages[0]["content"], conversation)
    assert list(parts) == ["<|im_end|>"]


def test_a_word_costs_its_length_however_many_special_tokens_there_are() -> None:
    many = [SpecialToken(f"<|reserved_special_{i}|>", i) for i in range(1000)]
    guard = SpecialGuard(SpecialTokens(many))
    names = [f"participant_of_the_talk_{i}" for i in range(512)]
    num_calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        marked = [guard._mark_suspects(name, GUARDS[0]) for name in names]
    finally:
        sys.setprofile(None)
    assert marked == names
    assert num_calls < 512 * 100


@pytest.mark.parametrize(
    ("word", "marked"),
    [
        ("q", "q"),
        ("a<|im_end|>b", "a^<^|^i^m^_^e^n^d^|^>b"),
        (" |> ", " ^|^> "),
        ("> x <|im", "^> x ^<^|^i^m"),
        ("m_en", "^m^_^e^n"),
        ("", ""),
    ],
)
def test_whole_and_cut_special_texts_are_guarded(word: str, marked: str) -> None:
    assert GUARD._mark_suspects(word, "^") == marked


def test_special_texts_that_overlap_are_both_guarded() -> None:
    guard = SpecialGuard(SpecialTokens([SpecialToken("abab", 0), SpecialToken("aba", 1)]))
    assert guard._mark_suspects("-ababab-aba-", "^") == "-^a^b^a^b^a^b-^a^b^a-"
