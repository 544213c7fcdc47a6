from __future__ import annotations

import resource
import time
from typing import Any

import pytest

from hybridgen.errors import BadModelFile, HybridGenError, InvalidRequest, UnsupportedModel
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.request import ChatMessage
from hybridgen.text.chat_template import MAX_OUTPUT_BYTES, ChatTemplate

USER = [ChatMessage("user", "hi")]


def _render(source: str, messages: Any = USER, **options: Any) -> str:
    return ChatTemplate(source, cpu_limit_s=0.2, **options).render(messages)


def test_reference_prompts_render_as_in_the_reference(
    smollm2_spec: TokenizerSpec, smollm2_prompts: list[dict[str, Any]]
) -> None:
    assert smollm2_spec.chat_template is not None
    template = ChatTemplate(smollm2_spec.chat_template)
    for prompt in smollm2_prompts:
        messages = [ChatMessage(turn["role"], turn["content"]) for turn in prompt["messages"]]
        assert template.render(messages) == prompt["rendered"]
        assert template.render(prompt["messages"]) == prompt["rendered"]


def test_own_system_message_replaces_the_default(smollm2_spec: TokenizerSpec) -> None:
    template = ChatTemplate(smollm2_spec.chat_template or "")
    messages = [ChatMessage("system", "Be brief."), *USER]
    assert template.render(messages, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    )


_ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
_TEMPLATES = {
    "blocks and their white space": (
        "{% if messages %}\n    {% for m in messages %}\n  {{ m.role }}: {{ m.content | trim }}\n"
        "    {% endfor %}\n{% endif %}{{ bos_token }}{{ eos_token }}"
    ),
    "loop controls": "{% for m in messages %}{% if loop.index0 > 0 %}{% break %}{% endif %}"
    "{{ m['content'] }}{% endfor %}",
    "namespace and slices": "{% set ns = namespace(found=false) %}{% for m in messages[::-1] %}"
    "{% if not ns.found %}{% set ns.found = true %}{{ m.content }}{% endif %}{% endfor %}",
    "macro and concatenation": "{% macro turn(m, i) %}{{ i ~ '. ' ~ m.role ~ 1.5 ~ none }}"
    "{% endmacro %}{% for m in messages %}{{ turn(m, loop.index) }}{% endfor %}",
    "json": "{{ messages | tojson }}{{ {'é': '<a>'} | tojson(indent=2) }}",
    "string methods": "{{ messages[0].content.split('i')[0].upper().replace('H', 'X' * 3) }}"
    "{{ '-'.join(['a', 'b']) }}{{ messages | map(attribute='role') | join(', ') }}",
    "absent tools": "{% if tools is not none and tools %}T{% endif %}{{ documents is none }}"
    "{% if undefined_thing %}U{% endif %}{{ messages | length }}",
    "filters": "{{ [3, 1, 2] | sort | list }}{{ {'b': 1, 'a': 2} | dictsort }}"
    "{{ 'a\nb' | indent(2) }}{{ {'x': 1} | items | list }}{{ 'abc' | replace('b', 'BB') }}"
    "{{ 7 % 3 }}{{ 2 ** 8 }}{{ 'A' | lower | string }}{{ [1, 2] + [3] }}{{ ('a', 'b') | first }}",
    "generation marks": "{% for m in messages %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% endfor %}",
}


@pytest.mark.parametrize("name", _TEMPLATES)
def test_ordinary_templates_render_as_transformers_does(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "ho"}]
    (expected,), _ = render_jinja_template(
        [messages],
        chat_template=_TEMPLATES[name],
        add_generation_prompt=True,
        **_ENDS,
    )
    ours = ChatTemplate(_TEMPLATES[name], **_ENDS)
    assert ours.render(messages) == expected


def test_clock_is_the_injected_one() -> None:
    assert _render("{{ strftime_now('%d %b %Y') }}", now_s=lambda: 86_400.0) == "02 Jan 1970"


def test_template_that_refuses_ends_the_request_with_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        _render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ 'a' | lipsum_filter }}",
        "{% for x in y %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "x" * (2**20 + 1),
        "{% unknown_tag %}",
    ],
)
def test_what_is_no_template_is_a_bad_model_file(source: str) -> None:
    with pytest.raises(BadModelFile):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages[0]['content'].format.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ '%s' % messages }}",
        "{{ raise_exception.__globals__['time'] }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ ['a'] | map('attr', '__class__') | list }}",
        "{{ ''.encode() }}",
        "{% include 'x' %}",
        "{{ lipsum(1000) }}",
        "{{ ['a'] | join(attribute='__class__') }}",
    ],
)
def test_nothing_outside_is_reachable(source: str) -> None:
    try:
        shown = _render(source)
    except (InvalidRequest, UnsupportedModel):
        return
    assert shown == ""  # the attribute is undefined


_BOMBS = {
    "endless loops": "{% for a in range(100000) %}{% for b in range(100000) %}"
    "{% endfor %}{% endfor %}",
    "huge range": "{% for a in range(10**12) %}{{ a }}{% endfor %}",
    "multiplication": "{{ 'x' * 10 ** 10 }}",
    "reverse multiplication": "{{ 10000000000 * 'x' }}",
    "list multiplication": "{{ ([0] * 10 ** 9) | length }}",
    "power": "{{ 10 ** 10 ** 9 }}",
    "doubling by +": "{% set ns = namespace(x='aaaa') %}{% for i in range(64) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}",
    "doubling by ~": "{% set ns = namespace(x='aaaa') %}{% for i in range(64) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length }}",
    "doubling of lists": "{% set ns = namespace(x=['a']) %}{% for i in range(64) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}",
    "squaring": "{% set ns = namespace(x=99) %}{% for i in range(64) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "shared lists shown": "{% set ns = namespace(x=['aaaa']) %}{% for i in range(64) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "shared lists as json": "{% set ns = namespace(x=['aaaa']) %}{% for i in range(64) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson | length }}",
    "shared lists as text": "{% set ns = namespace(x=['aaaa']) %}{% for i in range(64) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | upper | length }}",
    "replace": "{% set x = 'a' * 100000 %}{{ x.replace('a', x) | length }}",
    "replace filter": "{% set x = 'a' * 100000 %}{{ x | replace('a', x) | length }}",
    "join": "{% set x = 'a' * 100000 %}{{ x.join(x) | length }}",
    "join filter": "{% set x = 'a' * 100000 %}{{ x | join(x) | length }}",
    "set block": "{% set c = 'a' * 1000000 %}{% set x %}{% for i in range(100000) %}{{ c }}"
    "{% endfor %}{% endset %}{{ x | length }}",
    "macro": "{% macro m() %}{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}{% endmacro %}"
    "{{ m() | length }}",
    "kept texts": "{% set c = 'a' * 1000000 %}{% set ns = namespace(x=[]) %}"
    "{% for i in range(100000) %}{% set ns.x = ns.x + [c[1:]] %}{% endfor %}",
    "kept upper texts": "{% set c = 'a' * 1000000 %}{% set ns = namespace(x=[]) %}"
    "{% for i in range(100000) %}{% set ns.x = ns.x + [c.upper()] %}{% endfor %}",
    "indent": "{{ 'a' | indent(1000000000, true) | length }}",
    "json indent": "{{ [1] | tojson(indent=100000000) }}",
    "output": "{% for i in range(100000) %}{{ 'a' * 100 }}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "date width": "{{ strftime_now('%1000000000d') }}",
    "division": "{{ 1 / 0 }}",
    "missing key": "{{ messages[99].content.x }}",
    "constant folding": "{{ ('a' ~ 'b') * 10 ** 10 }}",
}


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("name", _BOMBS)
def test_hostile_templates_are_bounded_and_typed(name: str) -> None:
    start_s, start_kib = time.process_time(), _peak_kib()
    with pytest.raises(HybridGenError) as caught:
        _render(_BOMBS[name])
    assert isinstance(caught.value, InvalidRequest | BadModelFile)
    assert time.process_time() - start_s < 1.0
    assert _peak_kib() - start_kib < 512 * 1024


@pytest.mark.parametrize("name", ["kept texts", "kept upper texts", "set block", "macro"])
def test_memory_is_bounded_before_time_is_up(name: str) -> None:
    template = ChatTemplate(_BOMBS[name], cpu_limit_s=30.0)
    with pytest.raises(InvalidRequest, match="too much text"):
        template.render(USER)


def test_output_at_the_limit_passes_and_one_more_byte_does_not() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    longest = "é" * (MAX_OUTPUT_BYTES // 2)
    assert template.render([ChatMessage("user", longest)]) == longest
    with pytest.raises(InvalidRequest) as caught:
        template.render([ChatMessage("user", longest + "x")])
    assert caught.value.fields["limit"] == f"{MAX_OUTPUT_BYTES} bytes"


def test_budget_is_new_for_each_rendering() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    for _ in range(40):
        template.render([ChatMessage("user", "x" * 1_000_000)])
    template_of_many = ChatTemplate(
        "{% for i in range(60) %}{{ ('x' * 1000000) | length }}{% endfor %}"
    )
    for _ in range(3):
        assert template_of_many.render(USER) == "1000000" * 60
