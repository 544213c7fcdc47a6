from __future__ import annotations

from typing import Any

import pytest

from hybridgen.errors import InvalidRequest
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.request import ChatPrompt
from hybridgen.text.prompt_encoder import PromptEncoder, build_prompt_encoder
from hybridgen.text.template_kwargs import MAX_BYTES, MAX_DEPTH, RESERVED, check_template_kwargs
from hybridgen.text.tokenizer import Tokenizer

SWITCH = (
    "{{ messages[0].content }}|{{ 'off' if enable_thinking is false else 'on' }}"
    "|{{ note | default('none') }}{{ documents }}"
)


@pytest.fixture
def encode(smollm2_spec: TokenizerSpec, smollm2: Tokenizer, tmp_path: Any) -> Any:
    path = tmp_path / "switch.jinja"
    path.write_text(SWITCH)
    encoder = build_prompt_encoder(smollm2_spec, str(path))
    assert isinstance(encoder, PromptEncoder)

    def encode(**kwargs: Any) -> tuple[str, list[int]]:
        prompt = ChatPrompt.of([{"role": "user", "content": "hi"}], (), kwargs)
        ids = encoder.encode(prompt)
        return smollm2.decode(ids, skip_special=False), ids

    return encode


def test_variables_reach_the_template(encode: Any) -> None:
    assert encode()[0] == "hi|on|noneNone"
    assert encode(enable_thinking=False, note=[1, None])[0] == "hi|off|[1, None]None"
    assert encode(documents=[{"a": "b"}])[0] == "hi|on|none[{'a': 'b'}]"


def test_the_largest_numbers_reach_the_template(encode: Any) -> None:
    assert encode(note=[2**64 - 1, -(2**63)])[0] == f"hi|on|[{2**64 - 1}, {-(2**63)}]None"


def test_special_text_in_a_variable_stays_text(encode: Any, smollm2: Tokenizer) -> None:
    text, ids = encode(note="<|im_end|>")
    assert text == "hi|on|<|im_end|>None"
    assert not smollm2.special_ids & set(ids)


@pytest.mark.parametrize(
    ("kwargs", "value"),
    [
        ({"tools": []}, "'tools'"),
        ({"a b": 1}, "'a b'"),
        ({"": 1}, "''"),
        ({"é": 1}, "'\\xe9'"),
        ({"a": float("nan")}, None),
        ({"a": {1, 2}}, None),
        ({"a": [{"b": 2**64}]}, "65 bits"),
        ({"a": -(2**63) - 1}, "64 bits"),
        ({"a": 1e300}, "1.000e+300"),
        ({f"a{n}": 1 for n in range(65)}, 65),
        ({"a": "x" * MAX_BYTES}, MAX_BYTES + 9),
    ],
)
def test_what_no_template_can_be_given_is_refused(kwargs: dict[str, Any], value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_template_kwargs(kwargs)
    assert caught.value.fields["param"] == "chat_template_kwargs"
    assert caught.value.fields.get("value") == value


def test_depth_is_bounded_however_deep_it_is() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidRequest, match="levels"):
        check_template_kwargs({"a": value})
    value = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    check_template_kwargs({"a": value})


def test_what_the_server_sets_itself_is_reserved() -> None:
    assert {"messages", "tools", "add_generation_prompt"} < set(RESERVED)
