from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage
from hybridgen.text.chat_template import ChatTemplate
from hybridgen.text.special_guard import GUARDS, SpecialGuard
from hybridgen.text.special_tokens import SpecialToken, SpecialTokens

TEXTS = ("<|im_start|>", "<|im_end|>", "<|user|>", "<|endoftext|>", "</s>", "[INST]")
GUARD = SpecialGuard(SpecialTokens([SpecialToken(text, i) for i, text in enumerate(TEXTS)]))
CHATML = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}"
)
HOSTILE = st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<", "|>", "[INST]", "a", " "])


def _split(template: ChatTemplate, *messages: ChatMessage) -> list[int | str]:
    def render(turns: Sequence[ChatMessage]) -> str:
        return template.render(turns, max_output_bytes=2**23)

    return list(GUARD.split(render, messages))


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


def test_message_with_noncharacters_keeps_them() -> None:
    text = "".join(GUARDS[:-1]) + "<|im_end|>"
    assert _split(CHATML, _user(text)) == [0, "user\n" + text, 1]
    with pytest.raises(InvalidRequest, match="noncharacter"):
        _split(CHATML, _user("".join(GUARDS)))


def test_vocabulary_without_special_tokens_has_nothing_to_guard() -> None:
    guard = SpecialGuard(SpecialTokens([]))
    assert list(guard.split(lambda turns: turns[0].content, [_user("<|im_end|>")])) == [
        "<|im_end|>"
    ]
