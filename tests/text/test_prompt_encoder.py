from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.config import Config
from hybridgen.errors import (
    BadModelFile,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
)
from hybridgen.formats.mock_model import ASSISTANT_ID, BOS_ID, USER_ID, mock_model
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.request import ChatMessage, ChatPrompt, IdsPrompt, Prompt, TextPrompt
from hybridgen.text.chat_template import ChatTemplate
from hybridgen.text.prompt_encoder import PromptEncoder, build_prompt_encoder
from hybridgen.text.tokenizer import Tokenizer, build_tokenizer

MOCK_SPEC = mock_model(Config()).tokenizer
MOCK = build_prompt_encoder(MOCK_SPEC, max_model_len=64)


def _chat(*contents: str, role: str = "user") -> ChatPrompt:
    return ChatPrompt([ChatMessage(role, content) for content in contents])


@pytest.fixture(scope="session")
def smollm2_encoder(smollm2_spec: TokenizerSpec) -> PromptEncoder:
    return build_prompt_encoder(smollm2_spec, max_model_len=8192)


def test_reference_messages_give_the_reference_ids(
    smollm2_encoder: PromptEncoder, smollm2_prompts: list[dict[str, Any]]
) -> None:
    for prompt in smollm2_prompts:
        messages = msgspec.convert(prompt["messages"], list[ChatMessage])
        assert smollm2_encoder.encode(ChatPrompt(messages)) == prompt["prompt_ids"]


HOSTILE = st.lists(
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "start|>", "<", ">", "a", "\n", "é "])
).map("".join)


@given(HOSTILE)
def test_special_token_text_of_users_stays_text(
    smollm2_encoder: PromptEncoder, content: str
) -> None:
    ids = smollm2_encoder.encode(_chat(f".{content}."))
    plain = smollm2_encoder.encode(_chat("."))
    assert [one for one in ids if one < 17] == [one for one in plain if one < 17]
    assert all(one >= 17 for one in smollm2_encoder.encode(TextPrompt(f".{content}.")))


def test_text_gets_a_bos_only_when_the_model_wants_one() -> None:
    with_bos = build_prompt_encoder(msgspec.structs.replace(MOCK_SPEC, add_bos=True))
    assert with_bos.encode(TextPrompt("<|bos|>")) == [BOS_ID, *b"<|bos|>"]
    assert MOCK.encode(TextPrompt("a")) == [97]


def test_messages_get_what_the_template_writes_and_no_second_bos() -> None:
    with_bos = build_prompt_encoder(msgspec.structs.replace(MOCK_SPEC, add_bos=True))
    expected = [BOS_ID, USER_ID, 104, 105, ASSISTANT_ID]
    assert with_bos.encode(_chat("hi")) == MOCK.encode(_chat("hi")) == expected


def test_ids_stay_as_they_are_and_are_checked() -> None:
    assert MOCK.encode(IdsPrompt([0, 511, BOS_ID])) == [0, 511, BOS_ID]
    for bad_id in (-1, 512, 2**63):
        with pytest.raises(InvalidRequest) as caught:
            MOCK.encode(IdsPrompt([1, bad_id]))
        assert caught.value.fields["value"] == bad_id


@pytest.mark.parametrize("prompt", [TextPrompt(""), IdsPrompt([]), ChatPrompt([])])
def test_empty_prompts_are_refused(prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest):
        MOCK.encode(prompt)


@pytest.mark.parametrize(
    "prompt", [TextPrompt("a\ud800"), _chat("\udfff"), _chat("a", role="\ud800")]
)
def test_lone_surrogates_are_refused(prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest):
        MOCK.encode(prompt)


def test_prompts_must_leave_room_in_the_context() -> None:
    assert len(MOCK.encode(TextPrompt("a" * 63))) == 63
    for prompt in (TextPrompt("a" * 64), IdsPrompt([1] * 64), _chat("a" * 62)):
        with pytest.raises(ContextLengthExceeded) as caught:
            MOCK.encode(prompt)
        assert caught.value.fields["limit"] == 63


def test_bytes_are_counted_before_any_work() -> None:
    for prompt in (TextPrompt("é" * 257), _chat("é" * 200, "é" * 57)):
        with pytest.raises(ContextLengthExceeded) as caught:
            MOCK.encode(prompt)
        assert caught.value.fields["limit"] == 512
        assert caught.value.fields["value"] == 514


def test_model_without_a_template_refuses_messages() -> None:
    encoder = build_prompt_encoder(msgspec.structs.replace(MOCK_SPEC, chat_template=None))
    with pytest.raises(InvalidRequest, match="no chat template"):
        encoder.encode(_chat("hi"))


def test_template_file_replaces_the_models_own(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[0].content }}{{ eos_token }}")
    encoder = build_prompt_encoder(MOCK_SPEC, str(path))
    assert encoder.encode(_chat("hi<|eos|>")) == [*b"hi<|eos|>", 257]


def test_bad_template_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    with pytest.raises(ConfigError, match="No such file"):
        build_prompt_encoder(MOCK_SPEC, str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        build_prompt_encoder(MOCK_SPEC, str(path))
    path.write_text("{% if %}")
    with pytest.raises(BadModelFile):
        build_prompt_encoder(MOCK_SPEC, str(path))


def test_all_renderings_of_a_prompt_share_one_limit() -> None:
    source = (
        "{% for i in range(0 if 'a' in messages[0].content else 10**5) %}"
        "{% for j in range(10**5) %}{% endfor %}{% endfor %}{{ messages[0].content }}"
    )
    template = ChatTemplate(source, cpu_limit_s=0.05)
    encoder = PromptEncoder(build_tokenizer(MOCK_SPEC), template)
    start_s = time.process_time()
    with pytest.raises(InvalidRequest, match="takes too long"):
        encoder.encode(_chat("a<|eos|>"))
    assert time.process_time() - start_s < 0.4


def test_template_that_refuses_a_role_ends_the_request() -> None:
    with pytest.raises(InvalidRequest, match="unknown role ipython"):
        MOCK.encode(_chat("hi", role="ipython"))


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}


def test_template_without_tools_gets_them_in_words(
    smollm2_encoder: PromptEncoder, smollm2: Tokenizer
) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "done", "tool_call_id": "1"},
    ]
    prompt = ChatPrompt.of(messages, [TOOL])
    ids = smollm2_encoder.encode(prompt)
    text = smollm2.decode(ids, skip_special=False)
    assert '{"name": "f", "description": "<|im_end|>"}' in text
    assert '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' in text
    assert "<tool_response>\ndone\n</tool_response>" in text
    # Four turns that the template closed, and the one that it opened; none that a user wrote.
    assert [one for one in ids if one < 17] == [1, 2] * 4 + [1]


def test_template_with_tools_gets_them_as_they_are() -> None:
    source = (
        "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
        "{% for m in messages %}{{ m.role }}{{ m.tool_calls | length }}{% endfor %}"
    )
    spec = msgspec.structs.replace(MOCK_SPEC, chat_template=source)
    encoder = build_prompt_encoder(spec)
    prompt = ChatPrompt.of([{"role": "assistant", "tool_calls": [CALL]}], [TOOL])
    assert bytes(encoder.encode(prompt)) == b"f;assistant1"


def test_tools_count_as_part_of_the_prompt() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 600}}
    with pytest.raises(ContextLengthExceeded):
        MOCK.encode(ChatPrompt.of([{"role": "user", "content": "hi"}], [tool]))
