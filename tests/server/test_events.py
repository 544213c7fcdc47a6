from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hybridgen.client.chunk import StreamChunk
from hybridgen.errors import Cancelled, DeadlineExceeded
from hybridgen.request import ChatMessage, ChatPrompt, IdsPrompt, SamplingParams, TextPrompt
from hybridgen.server.answers import AnswerHead, whole_answer
from hybridgen.server.events import DONE, EventEncoder, error_event
from hybridgen.server.generation import Generation
from tests.server.vocabulary import CHUNKS, HELLO, TEXT, VOCABULARY, output

HEAD = AnswerHead("id-1", 1_700_000_000, 'de"mo é')


def encoder(prompt: Any = None, **more: Any) -> EventEncoder:
    is_chat = prompt is None
    generation = Generation(
        model=None,
        prompts=[ChatPrompt([ChatMessage("user", "hi")]) if is_chat else prompt],
        params=SamplingParams(),
        is_chat=is_chat,
        is_stream=True,
        **more,
    )
    return EventEncoder(HEAD, generation, VOCABULARY)


def payloads(*frames: bytes) -> list[Any]:
    """As a reader of server-sent events sees them: an event is its data lines up to a blank one."""
    stream = b"".join(frames)
    assert stream.endswith(b"\n\n")
    events = stream.decode().split("\n\n")[:-1]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def stream(events: EventEncoder, index: int = 0, chunks: Any = CHUNKS) -> list[bytes]:
    frames = [events.first(index), *(events.delta(index, chunk) for chunk in chunks)]
    return [*frames, events.finish(index, "stop")]


@pytest.mark.parametrize("prompt", [None, TextPrompt("Once")])
def test_the_last_event_of_a_choice_tells_its_seed(prompt: Any) -> None:
    (event,) = payloads(encoder(prompt).finish(0, "length", 2**64 - 1))
    assert event["choices"][0]["seed"] == 2**64 - 1
    assert event["choices"][0]["finish_reason"] == "length"


def test_a_chat_streams_its_role_then_its_text_then_why_it_ended() -> None:
    events = payloads(*stream(encoder(), chunks=[StreamChunk("Hi\n", [1]), StreamChunk("!", [2])]))
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "Hi\n"},
        {"content": "!"},
        {},
    ]
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None, None, None, "stop"]
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    assert {(event["id"], event["created"], event["model"]) for event in events} == {
        ("id-1", 1_700_000_000, 'de"mo é')
    }


def test_the_clients_own_models_read_a_chat_stream() -> None:
    chat = pytest.importorskip("openai.types.chat")
    events = encoder(n=2, includes_usage=True)
    frames = [*stream(events, 0), *stream(events, 1), events.usage([output()] * 2)]
    told = [
        chat.ChatCompletionChunk.model_validate(payload, strict=True)
        for payload in payloads(*frames)
    ]
    for index in (0, 1):
        choices = [one.choices[0] for one in told[:-1] if one.choices[0].index == index]
        assert "".join(choice.delta.content or "" for choice in choices) == TEXT
        assert [choice.finish_reason for choice in choices][-1] == "stop"
        tokens = [
            token for choice in choices if choice.logprobs for token in choice.logprobs.content
        ]
        assert b"".join(bytes(token.bytes) for token in tokens) == TEXT.encode() + b"<end>"
    assert all(one.usage is None for one in told[:-1])
    assert told[-1].choices == []
    assert told[-1].usage.total_tokens == 17
    assert not any(one.model_extra for one in told)


def test_the_clients_own_models_read_a_completion_stream() -> None:
    types = pytest.importorskip("openai.types")
    frames = stream(encoder(TextPrompt("a")))
    # Built as the client builds them: its model of a completion has no word for "not yet ended".
    told = [types.Completion.construct(**payload) for payload in payloads(*frames)]
    assert "".join(one.choices[0].text for one in told) == TEXT
    offsets = [
        at for one in told if one.choices[0].logprobs for at in one.choices[0].logprobs.text_offset
    ]
    assert offsets == [0, 5, 11, 11, 12]
    assert told[-1].choices[0].finish_reason == "stop"
    assert not any(one.model_extra for one in told)


def test_streamed_logprobs_are_those_of_the_whole_answer() -> None:
    events = encoder(TextPrompt("a"))
    streamed = [event["choices"][0]["logprobs"] for event in payloads(*stream(events))]
    generation = Generation(
        model=None, prompts=[TextPrompt("a")], params=SamplingParams(), is_chat=False
    )
    whole = json.loads(asyncio.run(whole_answer(HEAD, generation, [output()], VOCABULARY)))
    for key, column in whole["choices"][0]["logprobs"].items():
        assert [one for part in streamed if part for one in part[key]] == column


def test_usage_is_null_in_every_chunk_when_it_comes_at_the_end() -> None:
    events = payloads(*stream(encoder(includes_usage=True)))
    assert all(event["usage"] is None for event in events)
    assert all("usage" not in event for event in payloads(*stream(encoder())))
    (last,) = payloads(encoder(includes_usage=True).usage([output()]))
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert last["choices"] == []


def test_a_completion_starts_with_its_prompt_only_when_it_echoes() -> None:
    assert encoder(TextPrompt("a")).first(0) == b""
    (event,) = payloads(encoder(IdsPrompt([HELLO]), echoes=True).first(0))
    assert event["choices"][0]["text"] == "Hello"
    assert event["object"] == "text_completion"


def test_a_chunk_without_text_and_logprobs_says_nothing() -> None:
    assert encoder().delta(0, StreamChunk("", [HELLO])) == b""
    assert encoder().delta(0, StreamChunk("", [HELLO], [])) != b""


def test_an_end_that_is_none_is_not_told_as_one() -> None:
    with pytest.raises(Cancelled):
        encoder().finish(0, "cancelled")


def test_an_error_in_mid_stream_has_all_four_fields() -> None:
    (event,) = payloads(error_event(DeadlineExceeded("too\nlate", limit=3)))
    assert event == {
        "error": {
            "message": "too\nlate; limit 3",
            "type": "server_error",
            "param": None,
            "code": "deadline_exceeded",
        }
    }


def test_the_end_of_a_stream_is_the_word_that_clients_wait_for() -> None:
    assert DONE == b"data: [DONE]\n\n"
