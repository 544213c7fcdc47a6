"""Reasoning over a real tree whose template opens it, as the clients of the API see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.free_port import free_port
from tests.support.http_caller import events, post
from tests.support.running_tree import running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    "<think>{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}\n"
)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("template") / "thinking.jinja"
    path.write_text(TEMPLATE)
    free = free_port()
    with running_tree(model="mock", num_gateways=1, port=free, chat_template=str(path)):
        yield free


def body(**options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"messages": messages, "seed": 5, "max_tokens": 24, **options}


def test_what_follows_an_opened_mark_is_reasoning_whole_and_streamed(port: int) -> None:
    answer = post(port, CHAT, body()).json()
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning_content"]
    tokens = answer["usage"]["completion_tokens"]
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": tokens}
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in events(port, CHAT, body(stream=True))
        if chunk != "[DONE]"
    ]
    pieces = [delta.get("reasoning_content", "") for delta in deltas]
    assert "".join(pieces) == message["reasoning_content"]
    assert len([piece for piece in pieces if piece]) > 1
    assert not any(delta.get("content") for delta in deltas)


def test_thinking_can_be_turned_off_in_the_template(port: int) -> None:
    off = body(chat_template_kwargs={"enable_thinking": False})
    answer = post(port, CHAT, off).json()
    message = answer["choices"][0]["message"]
    assert message["content"]
    assert "reasoning_content" not in message
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_variables_that_no_template_can_be_given_are_named(port: int) -> None:
    answer = post(port, CHAT, body(chat_template_kwargs={"messages": []}))
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "chat_template_kwargs"
    wanted = {"messages": body()["messages"], "chat_template_kwargs": {"enable_thinking": False}}
    plain = post(port, "/tokenize", {"messages": body()["messages"]}).json()
    assert post(port, "/tokenize", wanted).json()["count"] == plain["count"] + len("</think>")
