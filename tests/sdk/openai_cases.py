"""What OpenAI's Python package must find at a server, for any version of the package from 1.0 on.

Imports nothing of this repository: it runs under whatever package is on the path.

    python openai_cases.py http://127.0.0.1:8080/v1 KEY

Prints one line of JSON per case: its name, and what failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pydantic

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
SHORT: Any = {"model": "mock", "messages": MESSAGES, "seed": 7, "max_tokens": 24}
EXACT = {"min_tokens": 24}
LONG: Any = {**SHORT, "max_tokens": 1500, "extra_body": {"min_tokens": 1500}}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
#: What the server has room for, running and waiting.
NUM_FILLING = 10
Case = Callable[["Place"], object]


class Point(pydantic.BaseModel):
    """What an answer may be held to."""

    is_near: bool
    colour: Literal["red", "green"]


class Place:
    """Where the server is, and the key to it."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url = base_url
        self.key = key

    def client(self, **options: Any) -> openai.OpenAI:
        given = {"base_url": self.base_url, "api_key": self.key, "max_retries": 0, **options}
        return openai.OpenAI(**given)

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        given = {"base_url": self.base_url, "api_key": self.key, "max_retries": 0, **options}
        return openai.AsyncOpenAI(**given)

    def num_running(self) -> int:
        """Requests that hold a place, running or waiting."""
        address = self.base_url.removesuffix("/v1") + "/health"
        with urllib.request.urlopen(address) as answer:  # noqa: S310  # our own server
            facts = json.load(answer)
        return int(facts["num_running"]) + int(facts["num_waiting"])

    def wait_idle(self, timeout_s: float = 2.0) -> None:
        """Until nothing runs."""
        ends_s = time.monotonic() + timeout_s
        while self.num_running():
            assert time.monotonic() < ends_s, "requests run on for nobody"


@contextlib.contextmanager
def raises(kind: type[Exception]) -> Iterator[list[Any]]:
    """As pytest's; the error is put into the list."""
    caught: list[Any] = []
    try:
        yield caught
    except kind as error:
        assert type(error) is kind, type(error)  # noqa: PT017  # there is no pytest here
        caught.append(error)
    else:
        raise AssertionError(f"no {kind.__name__}")


def streamed_text(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


# --- answers ------------------------------------------------------------------------------------


def models_are_listed(place: Place) -> None:
    with place.client() as client:
        assert [model.id for model in client.models.list()] == ["mock"]
        assert client.models.retrieve("mock").object == "model"


def a_stream_is_the_whole_answer(place: Place) -> None:
    with place.client() as client:
        whole = client.chat.completions.create(**SHORT, extra_body=EXACT)
        with client.chat.completions.create(**SHORT, extra_body=EXACT, stream=True) as stream:
            chunks = list(stream)
    assert whole.choices[0].finish_reason == "length"
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    assert streamed_text(chunks) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks][-1] == "length"
    assert {c.id for c in chunks} == {chunks[0].id}


def usage_comes_last_when_asked_for(place: Place) -> None:
    with place.client() as client:
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**SHORT, extra_body=EXACT, **options))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in chunks[:-1])


def choices_are_numbered_and_end_once(place: Place) -> None:
    with place.client() as client:
        whole = client.chat.completions.create(**SHORT, n=3)
        chunks = list(client.chat.completions.create(**SHORT, n=3, stream=True))
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = ["", "", ""]
    ends = [0, 0, 0]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        ends[choice.index] += choice.finish_reason is not None
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [1, 1, 1]


def logprobs_are_told(place: Place) -> None:
    with place.client() as client:
        options: Any = {"logprobs": True, "top_logprobs": 2}
        whole = client.chat.completions.create(**SHORT, **options)
        tokens = whole.choices[0].logprobs.content
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
        chunks = list(client.chat.completions.create(**SHORT, **options, stream=True))
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert streamed == tokens


def texts_are_continued(place: Place) -> None:
    options: Any = {"model": "mock", "prompt": "Once", "max_tokens": 16, "seed": 7}
    with place.client() as client:
        whole = client.completions.create(**options)
        chunks = list(client.completions.create(**options, stream=True))
        both = client.completions.create(**{**options, "prompt": ["Once", "Twice"]}, n=2)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]


def the_stream_helper_reads_events(place: Place) -> None:
    with place.client() as client:
        chat = client.chat.completions
        helper = chat.stream if hasattr(chat, "stream") else client.beta.chat.completions.stream
        whole = client.chat.completions.create(**SHORT)
        text = whole.choices[0].message.content or ""
        with helper(
            **SHORT, stop=text[-3:]
        ) as stream:  # not ended by length: that is an error here
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert text.startswith(final.choices[0].message.content or "?")


def raw_answers_carry_the_request_id(place: Place) -> None:
    with place.client() as client:
        headers = {"X-Request-Id": "my-own-id"}
        raw = client.chat.completions.with_raw_response.create(**SHORT, extra_headers=headers)
        assert raw.headers["x-request-id"] == "my-own-id"
        assert raw.parse().id.endswith("my-own-id")
        with client.chat.completions.with_streaming_response.create(**SHORT) as answer:
            assert json.loads(answer.read())["object"] == "chat.completion"


def keys_that_ask_for_nothing_are_accepted(place: Place) -> None:
    harmless: Any = {
        **{"user": "u", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"},
        **{"logit_bias": {}, "n": 1, "stop": None, "response_format": {"type": "text"}},
    }
    with place.client() as client:
        assert client.chat.completions.create(**SHORT, **harmless).choices


# --- tools and formats --------------------------------------------------------------------------


def a_tool_is_called_as_asked(place: Place) -> None:
    with place.client() as client:
        options: Any = {**SHORT, "max_tokens": 400, "tools": [WEATHER], "tool_choice": "required"}
        whole = client.chat.completions.create(**options)
        chunks = list(client.chat.completions.create(**options, stream=True))
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    (call, *_) = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
    first = [piece for piece in pieces if piece.index == 0]
    assert first[0].function.name == "get_weather"
    arguments = "".join(piece.function.arguments or "" for piece in first)
    assert json.loads(arguments) == json.loads(call.function.arguments)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def a_conversation_with_calls_goes_on(place: Place) -> None:
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    messages: Any = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call-1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
    ]
    with place.client() as client:
        options: Any = {**SHORT, "messages": messages, "tools": [WEATHER], "tool_choice": "none"}
        whole = client.chat.completions.create(**options)
    assert whole.choices[0].message.content
    assert not whole.choices[0].message.tool_calls


def an_answer_is_parsed_into_a_model(place: Place) -> None:
    with place.client() as client:
        chat = client.chat.completions
        parse = chat.parse if hasattr(chat, "parse") else client.beta.chat.completions.parse
        options: Any = {**SHORT, "max_tokens": 400, "response_format": Point}
        point = parse(**options).choices[0].message.parsed
    assert isinstance(point, Point)
    assert point.colour in {"red", "green"}


def an_answer_is_json_when_asked_for(place: Place) -> None:
    kind: Any = {"type": "json_object"}
    with place.client() as client:
        whole = client.chat.completions.create(
            **{**SHORT, "max_tokens": 1000}, response_format=kind
        )
    if whole.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(whole.choices[0].message.content or ""), dict)
    else:
        assert (whole.choices[0].message.content or "").lstrip().startswith("{")


# --- asynchronous -------------------------------------------------------------------------------


def many_at_once_are_each_their_own(place: Place) -> None:
    async def ask(client: openai.AsyncOpenAI, text: str) -> tuple[str, str]:
        options: Any = {**SHORT, "messages": [{"role": "user", "content": text}]}
        whole = await client.chat.completions.create(**options)
        stream = await client.chat.completions.create(**options, stream=True)
        chunks = [chunk async for chunk in stream]
        return whole.choices[0].message.content or "", streamed_text(chunks)

    async def scene() -> None:
        async with place.async_client() as client:
            pairs = await asyncio.gather(*(ask(client, f"number {n}") for n in range(6)))
        assert all(whole == streamed for whole, streamed in pairs)
        assert len(set(pairs)) == 6

    asyncio.run(scene())


def a_cancelled_task_frees_its_place(place: Place) -> None:
    async def scene() -> None:
        async with place.async_client() as client:
            task = asyncio.create_task(client.chat.completions.create(**LONG))
            while not place.num_running():
                await asyncio.sleep(0.01)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            place.wait_idle()
            assert (await client.chat.completions.create(**SHORT)).choices

    asyncio.run(scene())


def a_stream_left_early_frees_its_place(place: Place) -> None:
    with place.client() as client:
        with client.chat.completions.create(**LONG, stream=True) as stream:
            next(iter(stream))
            assert place.num_running() == 1
        place.wait_idle()


# --- errors -------------------------------------------------------------------------------------


def a_bad_parameter_is_named(place: Place) -> None:
    with place.client() as client:
        for key, value in {"temperature": -1.0, "top_p": 2.0, "n": 0, "stop": ["a"] * 5}.items():
            with raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**{**SHORT, key: value})
            assert caught[0].param == key
            assert caught[0].code
            assert caught[0].type == "invalid_request_error"
        with raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**SHORT, extra_body={"surprise": 1})
        assert caught[0].param == "surprise"


def too_long_a_prompt_is_told_by_code(place: Place) -> None:
    with place.client() as client, raises(openai.BadRequestError) as caught:
        client.completions.create(model="mock", prompt="x" * 5000)
    assert caught[0].code == "context_length_exceeded"


def another_model_is_not_found(place: Place) -> None:
    with place.client() as client:
        with raises(openai.NotFoundError) as caught:
            client.chat.completions.create(**{**SHORT, "model": "another"})
        assert caught[0].param == "model"
        with raises(openai.NotFoundError):
            client.embeddings.create(model="mock", input="x")


def a_wrong_key_is_refused(place: Place) -> None:
    with place.client(api_key="wrong") as client, raises(openai.AuthenticationError):
        client.models.list()


def nobody_there_is_a_connection_error(place: Place) -> None:
    client = place.client(base_url="http://127.0.0.1:9/v1")
    with client, raises(openai.APIConnectionError):
        client.models.list()


def a_time_limit_ends_the_request(place: Place) -> None:
    with place.client(timeout=0.3) as client, raises(openai.APITimeoutError):
        client.chat.completions.create(**LONG)
    place.wait_idle()


def a_full_server_says_so_and_retries_succeed(place: Place) -> None:
    async def scene() -> None:
        async with place.async_client() as client, place.async_client(max_retries=5) as patient:
            chat = client.chat.completions
            filling = [asyncio.create_task(chat.create(**LONG)) for _ in range(NUM_FILLING)]
            while place.num_running() < NUM_FILLING:
                await asyncio.sleep(0.01)
            with raises(openai.RateLimitError) as caught:
                await chat.create(**SHORT)
            assert int(caught[0].response.headers["retry-after"]) >= 1
            waiting = asyncio.create_task(patient.chat.completions.create(**SHORT))
            assert (await waiting).choices
            for task in filling:
                task.cancel()
            await asyncio.gather(*filling, return_exceptions=True)

    asyncio.run(scene())
    place.wait_idle()


CASES: tuple[Case, ...] = (
    models_are_listed,
    a_stream_is_the_whole_answer,
    usage_comes_last_when_asked_for,
    choices_are_numbered_and_end_once,
    logprobs_are_told,
    texts_are_continued,
    the_stream_helper_reads_events,
    raw_answers_carry_the_request_id,
    keys_that_ask_for_nothing_are_accepted,
    a_tool_is_called_as_asked,
    a_conversation_with_calls_goes_on,
    an_answer_is_parsed_into_a_model,
    an_answer_is_json_when_asked_for,
    many_at_once_are_each_their_own,
    a_cancelled_task_frees_its_place,
    a_stream_left_early_frees_its_place,
    a_bad_parameter_is_named,
    too_long_a_prompt_is_told_by_code,
    another_model_is_not_found,
    a_wrong_key_is_refused,
    nobody_there_is_a_connection_error,
    a_time_limit_ends_the_request,
    a_full_server_says_so_and_retries_succeed,
)


def main() -> None:
    place = Place(*sys.argv[1:3])
    for case in CASES:
        problem = None
        try:
            case(place)
        except Exception:  # noqa: BLE001  # reported, and the next case runs
            problem = traceback.format_exc()
        print(json.dumps({"case": case.__name__, "problem": problem}), flush=True)


if __name__ == "__main__":
    main()
