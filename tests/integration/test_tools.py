"""Tools over a real tree with the embedded model, as the clients of the API use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hybridgen import ChatPrompt, SamplingParams
from tests.support.free_port import free_port
from tests.support.http_caller import events, post
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA},
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": SCHEMA}}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}


class Door:
    """A tree and the port of its gateway."""

    def __init__(self, tree: RunningTree, port: int) -> None:
        self.tree = tree
        self.port = port


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    port = free_port()
    with running_tree(model="demo", num_gateways=1, port=port, max_model_len=1024) as tree:
        yield Door(tree, port)


def body(**options: Any) -> dict[str, Any]:
    fixed = {"model": "demo", "temperature": 0, "max_tokens": 80, "tools": [WEATHER, TIME]}
    return {**fixed, "messages": [QUESTION], **options}


def test_a_required_call_is_made_and_its_result_is_taken_back(door: Door) -> None:
    wanted = body(tool_choice="required", parallel_tool_calls=False)
    (choice,) = post(door.port, CHAT, wanted).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in {"get_weather", "get_time"}
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Sunny, 21 degrees."}
    answer = post(door.port, CHAT, body(messages=[QUESTION, choice["message"], result]))
    assert answer.status == 200
    assert answer.json()["choices"][0]["message"]["content"]


def test_a_named_call_streams_what_it_says_whole(door: Door) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    (choice,) = post(door.port, CHAT, body(tool_choice=named)).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    chunks = [
        chunk["choices"][0]
        for chunk in events(door.port, CHAT, body(tool_choice=named, stream=True))
        if chunk != "[DONE]"
    ]
    pieces = [one for chunk in chunks for one in chunk["delta"].get("tool_calls", ())]
    assert [piece["function"].get("name") for piece in pieces if "id" in piece] == ["get_time"]
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert arguments == call["function"]["arguments"]
    assert len(pieces) > 3
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_the_model_may_answer_in_words(door: Door) -> None:
    (choice,) = post(door.port, CHAT, body(tool_choice="none")).json()["choices"]
    assert choice["message"]["content"]
    assert "tool_calls" not in choice["message"]
    assert post(door.port, CHAT, body()).status == 200


def test_an_answer_of_a_schema_stays_one_where_tools_are_offered(door: Door) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    format_ = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    (choice,) = post(door.port, CHAT, body(response_format=format_)).json()["choices"]
    message = choice["message"]
    assert message.get("tool_calls") or json.loads(message["content"])["n"] in {1, 2}


def test_a_schema_that_cannot_be_followed_is_named(door: Door) -> None:
    bad = {"name": "f", "parameters": {"type": "nothing"}, "strict": True}
    answer = post(door.port, CHAT, body(tools=[{"type": "function", "function": bad}]))
    assert (answer.status, answer.json()["error"]["param"]) == (400, "tools")


def test_the_openai_package_calls_tools(door: Door) -> None:
    import openai

    options: Any = body(tool_choice="required", parallel_tool_calls=False)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{door.port}/v1", api_key="none") as client:
        whole = client.chat.completions.create(**options).choices[0]
        with client.chat.completions.stream(**options) as stream:
            streamed = stream.get_final_completion().choices[0]
    assert whole.message.tool_calls is not None
    assert streamed.message.tool_calls is not None
    assert streamed.finish_reason == whole.finish_reason == "tool_calls"
    (one,), (other,) = whole.message.tool_calls, streamed.message.tool_calls
    assert (one.function.name, one.function.arguments) == (
        other.function.name,
        other.function.arguments,
    )


def test_the_python_client_sends_conversations_with_tools(door: Door) -> None:
    prompt = ChatPrompt.of([QUESTION], [WEATHER])
    assert len(door.tree.client.tokenize(prompt)) > len(door.tree.client.tokenize([QUESTION]))
    output = door.tree.client.generate(prompt, SamplingParams(temperature=0, max_tokens=4))
    assert len(output.token_ids) == 4
