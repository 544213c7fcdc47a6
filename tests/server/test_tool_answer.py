from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.client.chunk import StreamChunk
from hybridgen.request import RequestOutput, TokenLogprob
from hybridgen.server import conversation
from hybridgen.server.answer_reader import SLICE_CHARS, read_answer
from hybridgen.server.answers import AnswerHead, whole_answer
from hybridgen.server.events import EventEncoder
from hybridgen.server.tool_answer import ToolAnswer, new_call_id
from hybridgen.server.tool_use import ToolUse
from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.hermes import HERMES
from hybridgen.text.tool_calls.mistral import MISTRAL
from hybridgen.tool import MAX_CALLS, FunctionCall, ToolCall
from tests.server.test_events import payloads
from tests.server.tools import ask
from tests.server.vocabulary import HELLO, VOCABULARY
from tests.text.tool_calls.cut_text import cuts

HEAD = AnswerHead("id-1", 1_700_000_000, "demo")
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEXTS = st.sampled_from(
    [WEATHER, TIME, f"Let me see.\n{WEATHER}\n{TIME}", "Hello", WEATHER[:40], WEATHER[:60], "", " "]
)


def counted_ids() -> Callable[[CallFormat], str]:
    numbers = itertools.count()
    return lambda _: f"call_{next(numbers)}"


def tools_of(**keys: Any) -> ToolUse:
    tools = ask(**keys).tools
    assert tools is not None
    return tools


def read(text: str, use: ToolUse, reason: str, **options: Any) -> Any:
    return asyncio.run(read_answer(ToolAnswer(use, **options), text, reason))[:3]


def collected(deltas: list[Any]) -> dict[str, Any]:
    """The message that a client puts together from ``deltas``."""
    content: str | None = None
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta.get("content") is not None:
            content = (content or "") + delta["content"]
        for call in delta.get("tool_calls") or ():
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append({"id": call["id"], "type": call["type"], **call["function"]})
            else:
                assert "name" not in call["function"]
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return {"content": content, "calls": calls}


@given(TEXTS, st.booleans(), st.data())
def test_a_stream_is_the_whole_answer_in_pieces(
    text: str, is_parallel: bool, data: st.DataObject
) -> None:
    use = tools_of(parallel_tool_calls=is_parallel)
    answer = ToolAnswer(use, new_id=counted_ids())
    deltas = [delta for piece in data.draw(cuts(text)) for delta in answer.push(piece)]
    streamed = collected(msgspec.to_builtins(deltas + answer.finish()))
    content, calls, reason = read(text, use, "stop", new_id=counted_ids())
    assert (streamed["content"] or "") == (content or "")
    assert answer.finish_reason("stop") == reason
    assert streamed["calls"] == [
        {
            "id": call.id,
            "type": "function",
            "name": call.function.name,
            "arguments": call.function.arguments,
        }
        for call in calls
    ]


def test_calls_come_with_their_text_and_a_reason() -> None:
    text = f"Let me see.\n{WEATHER}\n{TIME}"
    assert read(text, tools_of(), "stop", new_id=counted_ids()) == (
        "Let me see.\n",
        [
            ToolCall("call_0", FunctionCall("get_weather", '{"city": "Rome"}')),
            ToolCall("call_1", FunctionCall("get_time", '{"city": "Oslo"}')),
        ],
        "tool_calls",
    )
    assert read("Hello", tools_of(), "stop") == ("Hello", [], "stop")
    assert read("", tools_of(), "stop") == ("", [], "stop")
    content, calls, reason = read(WEATHER[:60], tools_of(), "length")
    assert (content, reason) == (None, "length")
    assert calls[0].function.arguments == '{"city": "R'


def test_others_have_their_turn_while_a_long_answer_is_read() -> None:
    text = WEATHER * 100

    async def scene() -> int:
        num_turns = 0
        task = asyncio.create_task(read_answer(ToolAnswer(tools_of()), text, "stop"))
        while not task.done():
            await asyncio.sleep(0)
            num_turns += 1
        assert len(task.result()[1]) == 100
        return num_turns

    assert asyncio.run(scene()) > len(text) // SLICE_CHARS


def test_without_parallel_calls_the_first_is_passed_on() -> None:
    use = tools_of(parallel_tool_calls=False)
    _, calls, reason = read(f"{WEATHER}\n{TIME}", use, "stop")
    assert [call.function.name for call in calls] == ["get_weather"]
    assert reason == "tool_calls"


def test_a_forced_call_that_is_cut_off_before_its_name_is_no_content() -> None:
    assert read(WEATHER[:20], tools_of(tool_choice="required"), "length")[0] == ""
    assert read(WEATHER[:20], tools_of(), "length")[0] == WEATHER[:20]


def test_json_is_a_call_without_its_mark_unless_calls_are_held_to_have_one() -> None:
    bare = '{"name": "get_weather", "arguments": {}}'
    assert read(bare, tools_of(), "stop")[0] is None
    assert read(bare, tools_of(), "stop", is_held=True) == (bare, [], "stop")


def test_ids_are_new_and_of_the_form_that_templates_take() -> None:
    first, second = new_call_id(HERMES), new_call_id(HERMES)
    assert first != second
    assert first.startswith("call_")
    assert len(new_call_id(MISTRAL)) == 9
    assert new_call_id(MISTRAL).isalnum()


def streamed(text: str, **keys: Any) -> list[Any]:
    """The events of an answer of one character a token."""
    events = EventEncoder(HEAD, ask(stream=True, **keys), VOCABULARY)
    logprobs = [TokenLogprob(HELLO, -0.5)] if keys.get("logprobs") else None
    frames = [events.delta(0, StreamChunk(char, [HELLO], logprobs)) for char in text]
    return payloads(events.first(0), *frames, events.finish(0, "stop"))


def test_events_carry_name_and_id_once_and_arguments_in_pieces() -> None:
    events = streamed(WEATHER)
    choices = [event["choices"][0] for event in events]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": None}
    first = deltas[1]["tool_calls"][0]
    assert first.keys() == {"index", "id", "type", "function"}
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert deltas[2] == {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
    assert deltas[-1] == {}
    assert [choice["finish_reason"] for choice in choices[-2:]] == [None, "tool_calls"]


def test_every_token_keeps_its_logprobs() -> None:
    events = streamed(f"Well {WEATHER}", logprobs=True)
    told = [event["choices"][0]["logprobs"] for event in events]
    tokens = [token for one in told if one for token in one["content"]]
    assert len(tokens) == len(f"Well {WEATHER}")


def test_a_whole_answer_has_null_for_no_content_and_no_key_for_no_calls() -> None:
    def message(text: str) -> Any:
        output = RequestOutput(
            num_prompt_tokens=1, token_ids=[1], text=text, finish_reason="stop", seed=1
        )
        raw = asyncio.run(whole_answer(HEAD, ask(), [output], VOCABULARY))
        return json.loads(raw)["choices"][0]

    called = message(WEATHER)
    assert called["finish_reason"] == "tool_calls"
    assert called["message"]["content"] is None
    (call,) = called["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    plain = message("Hello")
    assert plain["finish_reason"] == "stop"
    assert "tool_calls" not in plain["message"]


def test_the_clients_own_models_read_calls() -> None:
    chat = pytest.importorskip("openai.types.chat")
    for event in streamed(f"Well.\n{WEATHER}\n{TIME}"):
        chunk = chat.ChatCompletionChunk.model_validate(event, strict=True)
        for call in chunk.choices[0].delta.tool_calls or ():
            assert not call.model_extra


def test_an_answer_holds_no_more_calls_than_can_be_sent_back() -> None:
    text = "\n".join([WEATHER] * (MAX_CALLS + 2))
    _, calls, reason = read(text, tools_of(), "stop", new_id=counted_ids())
    assert len(calls) == MAX_CALLS
    assert reason == "tool_calls"
    msgspec.convert(
        {"role": "assistant", "tool_calls": msgspec.to_builtins(calls)}, conversation.Message
    )
