from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from hybridgen.errors import Cancelled
from hybridgen.request import ChatMessage, ChatPrompt, IdsPrompt, SamplingParams, TextPrompt
from hybridgen.server import answers
from hybridgen.server.answers import AnswerHead, Usage, new_id, public_finish_reason, whole_answer
from hybridgen.server.generation import Generation
from tests.server.vocabulary import HELLO, IDS, SEED, TEXT, VOCABULARY, WORLD, output

HEAD = AnswerHead("chatcmpl-1", 1_700_000_000, "demo")
CHAT = ChatPrompt([ChatMessage("user", "hi")])


def generation(*prompts: Any, n: int = 1, is_chat: bool = True, **more: Any) -> Generation:
    return Generation(
        model="demo",
        prompts=[*prompts],
        params=SamplingParams(logprobs=2),
        n=n,
        is_chat=is_chat,
        **more,
    )


def whole(*arguments: Any) -> bytes:
    return asyncio.run(whole_answer(*arguments))


def test_others_have_their_turn_between_choices() -> None:
    async def scene(wanted: Generation) -> int:
        num_turns = 0
        task = asyncio.create_task(whole_answer(HEAD, wanted, [output()] * 4, VOCABULARY))
        while not task.done():
            await asyncio.sleep(0)
            num_turns += 1
        return num_turns

    for wanted in (generation(CHAT, n=4), generation(TextPrompt("a"), n=4, is_chat=False)):
        assert asyncio.run(scene(wanted)) > 4


def test_a_chat_answer_says_everything_once() -> None:
    raw = whole(HEAD, generation(CHAT), [output(has_logprobs=False)], VOCABULARY)
    assert json.loads(raw) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "demo",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "seed": SEED,
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 5,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_completion_answer_says_everything_once() -> None:
    wanted = generation(TextPrompt("a"), is_chat=False)
    raw = whole(HEAD, wanted, [output("length", has_logprobs=False)], VOCABULARY)
    assert json.loads(raw) == {
        "id": "chatcmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "demo",
        "choices": [
            {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length", "seed": SEED}
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 5,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_the_clients_own_models_read_a_chat_answer() -> None:
    chat = pytest.importorskip("openai.types.chat")
    raw = whole(HEAD, generation(CHAT, n=2), [output(), output("length")], VOCABULARY)
    answer = chat.ChatCompletion.model_validate_json(raw, strict=True)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    assert [choice.index for choice in answer.choices] == [0, 1]
    tokens = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens) == TEXT.encode() + b"<end>"
    assert not answer.model_extra
    assert answer.model_dump(exclude_unset=True, mode="json") == json.loads(raw)


def test_the_clients_own_models_read_a_completion_answer() -> None:
    types = pytest.importorskip("openai.types")
    wanted = generation(TextPrompt("a"), IdsPrompt([HELLO]), n=2, is_chat=False)
    raw = whole(HEAD, wanted, [output()] * 4, VOCABULARY)
    answer = types.Completion.model_validate_json(raw, strict=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[3].text == TEXT
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert not answer.model_extra
    assert answer.model_dump(exclude_unset=True, mode="json") == json.loads(raw)


def test_a_prompt_is_counted_once_however_many_choices_it_has() -> None:
    wanted = generation(TextPrompt("a"), TextPrompt("b"), n=3, is_chat=False)
    usage = json.loads(whole(HEAD, wanted, [output()] * 6, VOCABULARY))["usage"]
    assert usage["prompt_tokens"] == 14
    assert usage["completion_tokens"] == 30
    assert usage["total_tokens"] == 44


def test_as_cached_counts_what_all_choices_of_a_prompt_found() -> None:
    found = (0, 6, 6), (2, 4, 4)
    outputs = [
        msgspec.structs.replace(output(), num_cached_tokens=count)
        for of_prompt in found
        for count in of_prompt
    ]
    usage = Usage.of(outputs, generation(CHAT, n=3), VOCABULARY)
    assert usage.prompt_tokens_details.cached_tokens == 0 + 2


def test_an_echo_puts_the_prompt_before_each_text() -> None:
    prompts = TextPrompt("Say: "), IdsPrompt([HELLO, WORLD, IDS[-1]])
    wanted = generation(*prompts, is_chat=False, echoes=True)
    raw = whole(HEAD, wanted, [output(has_logprobs=False)] * 2, VOCABULARY)
    texts = [choice["text"] for choice in json.loads(raw)["choices"]]
    assert texts == ["Say: " + TEXT, "Hello wörld<end>" + TEXT]


@pytest.mark.parametrize("reason", ["cancelled", "error", ""])
def test_a_request_that_did_not_end_by_itself_has_no_answer(reason: str) -> None:
    with pytest.raises(Cancelled):
        public_finish_reason(reason)
    with pytest.raises(Cancelled):
        whole(HEAD, generation(CHAT), [output(reason)], VOCABULARY)


def test_ids_say_what_kind_of_answer_they_name() -> None:
    assert new_id(generation(CHAT), "abc") == "chatcmpl-abc"
    assert new_id(generation(TextPrompt("a"), is_chat=False), "abc") == "cmpl-abc"


def test_models_are_listed_as_clients_expect() -> None:
    types = pytest.importorskip("openai.types")
    pages = pytest.importorskip("openai.pagination")
    raw = answers.models_answer(["a", "b"], 5, 2048)
    page = pages.SyncPage[types.Model].model_validate_json(raw, strict=True)
    assert [(model.id, model.object, model.created) for model in page.data] == [
        ("a", "model", 5),
        ("b", "model", 5),
    ]
    one = types.Model.model_validate_json(answers.model_answer("a", 5, 2048), strict=True)
    assert one == page.data[0]


def test_tokens_and_texts_are_told_plainly() -> None:
    told = json.loads(answers.tokenize_answer([1, 2], 2048))
    assert told == {"count": 2, "max_model_len": 2048, "tokens": [1, 2]}
    assert json.loads(answers.detokenize_answer("é\n")) == {"prompt": "é\n"}
