from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.client.chunk import StreamChunk
from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatPrompt, RequestOutput
from hybridgen.server.answer_reader import answer_reader, read_answer
from hybridgen.server.answers import AnswerHead, whole_answer
from hybridgen.server.events import EventEncoder
from hybridgen.server.generation import Generation
from hybridgen.server.request_limits import RequestLimits
from hybridgen.server.schema import read_chat, read_tokenize
from hybridgen.text.reasoning import FORMATS
from hybridgen.text.vocabulary import Vocabulary
from tests.server.test_events import payloads
from tests.server.tools import SUPPORT, TOOLS
from tests.text.tool_calls.cut_text import cuts

LIMITS = RequestLimits(max_model_len=1000, tools=SUPPORT, reasoning=FORMATS["qwen3"])
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
TEXTS = st.sampled_from(
    ["Hi", THOUGHT + "Hi", THOUGHT + CALL, THOUGHT, THOUGHT[:12], THOUGHT + CALL[:50], CALL, ""]
)
BYTES = Vocabulary([bytes([value]) for value in range(256)])
HEAD = AnswerHead("id-1", 1_700_000_000, "demo")


def ask(**keys: Any) -> Generation:
    body = {"messages": [{"role": "user", "content": "hi"}], **keys}
    return read_chat(json.dumps(body).encode(), LIMITS)


def output(text: str) -> RequestOutput:
    ids = [*text.encode()]
    return RequestOutput(
        num_prompt_tokens=3, token_ids=ids, text=text, finish_reason="stop", seed=1
    )


def whole(text: str, **keys: Any) -> Any:
    answer = asyncio.run(whole_answer(HEAD, ask(**keys), [output(text)], BYTES))
    return json.loads(answer)


@given(TEXTS, st.booleans(), st.data())
def test_a_stream_is_the_whole_answer_in_pieces(
    text: str, has_tools: bool, data: st.DataObject
) -> None:
    generation = ask(**({"tools": TOOLS} if has_tools else {}))
    reader = answer_reader(generation, lambda _: "call_0")
    assert reader is not None
    deltas = [delta for piece in data.draw(cuts(text)) for delta in reader.push(piece)]
    deltas += reader.finish()
    again = answer_reader(generation, lambda _: "call_0")
    assert again is not None
    answer = asyncio.run(read_answer(again, text, "stop"))
    assert "".join(one.content or "" for one in deltas) == (answer.content or "")
    assert "".join(one.reasoning_content or "" for one in deltas) == (answer.reasoning or "")
    arguments = [call.function.arguments for one in deltas for call in one.tool_calls or ()]
    assert "".join(arguments) == "".join(call.function.arguments for call in answer.calls)
    assert reader.finish_reason("stop") == answer.finish_reason


def test_reasoning_stands_beside_the_content_and_is_counted() -> None:
    answer = whole(THOUGHT + "Hi")
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "Hi")
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(THOUGHT.rstrip())}


def test_calls_after_reasoning_are_calls() -> None:
    choice = whole(THOUGHT + CALL, tools=TOOLS)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "Let me see."
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_an_answer_that_is_cut_off_in_its_reasoning_has_no_content() -> None:
    message = whole(THOUGHT[:12])["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (None, "Let")
    message = whole("Hi")["choices"][0]["message"]
    assert message["content"] == "Hi"
    assert "reasoning_content" not in message


def test_events_tell_reasoning_from_content() -> None:
    encoder = EventEncoder(HEAD, ask(stream=True, stream_options={"include_usage": True}), BYTES)
    text = THOUGHT + "Hi"
    chunks = [StreamChunk(char, [ord(char)]) for char in text]
    frames = [encoder.first(0), *(encoder.delta(0, chunk) for chunk in chunks)]
    frames += [encoder.finish(0, "stop"), encoder.usage([output(text)])]
    *events, usage = payloads(*(frame for frame in frames if frame))
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert "".join(one.get("reasoning_content", "") for one in deltas) == "Let me see."
    assert "".join(one.get("content") or "" for one in deltas) == "Hi"
    assert not any({"content", "reasoning_content"} <= one.keys() for one in deltas[1:])
    assert usage["usage"]["completion_tokens_details"]["reasoning_tokens"] == 28


@pytest.mark.parametrize(
    ("keys", "is_told"),
    [
        ({}, True),
        ({"tools": TOOLS}, True),
        ({"tools": TOOLS, "tool_choice": "required"}, False),
        ({"response_format": {"type": "json_object"}}, False),
    ],
)
def test_an_answer_that_keeps_to_a_format_has_no_reasoning(
    keys: dict[str, Any], is_told: bool
) -> None:
    generation = ask(**keys)
    assert (generation.reasoning is not None) == is_told
    assert generation.params.keep_reasoning_marks == is_told


def test_reasoning_of_past_turns_and_variables_are_handed_on() -> None:
    turn = {"role": "assistant", "content": "Hi", "reasoning_content": "so"}
    messages = [{"role": "user", "content": "a"}, turn, {"role": "user", "content": "b"}]
    kwargs = {"enable_thinking": False}
    (prompt,) = ask(messages=messages, chat_template_kwargs=kwargs).prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1].reasoning_content == "so"
    assert prompt.template_kwargs == kwargs
    body = {"messages": messages, "chat_template_kwargs": kwargs}
    assert read_tokenize(msgspec.json.encode(body), LIMITS).prompt == prompt


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": "a", "reasoning_content": "b"}]},
            "messages[0].reasoning_content",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(keys: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(**keys)
    assert caught.value.fields["param"] == param
