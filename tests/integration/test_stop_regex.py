"""Patterns that stop a text, through a whole tree: over HTTP, ZeroMQ, and a killed detokenizer."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import msgspec
import pytest

from hybridgen import SamplingParams
from hybridgen.errors import InvalidRequest
from tests.support.free_port import free_port
from tests.support.http_caller import events, post
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

COMPLETIONS = "/v1/completions"
PROMPT = "Tell me about number 3."
MAX_TOKENS = 120
WHOLE = SamplingParams(seed=3, max_tokens=MAX_TOKENS, min_tokens=MAX_TOKENS)


@pytest.fixture(scope="module")
def tree() -> Iterator[tuple[RunningTree, int]]:
    port = free_port()
    options = {"num_gateways": 1, "port": port, "pool_restart_limit": 100}
    with running_tree(model="mock", mock_step_us=2000, **options) as running:
        yield running, port


@pytest.fixture(scope="module")
def whole(tree: tuple[RunningTree, int]) -> str:
    """The text without a stop."""
    return tree[0].client.submit(PROMPT, WHOLE).result().text


def late_pattern(text: str) -> tuple[str, int, int]:
    """A pattern whose first match is in the last third of ``text``, and where that is."""
    for begin in range(2 * len(text) // 3, len(text) - 4):
        first, *_, last = text[begin : begin + 4]
        pattern = f"{re.escape(first)}[^\\n]{{2}}{re.escape(last)}"
        found = re.search(pattern, text)
        if found is not None and found.start() == begin and found[0].isascii():
            return pattern, found.start(), found.end()
    raise AssertionError(f"no pattern for {text!r}")


def test_the_text_ends_where_the_pattern_matches(tree: tuple[RunningTree, int], whole: str) -> None:
    running, port = tree
    pattern, begin, end = late_pattern(whole)
    for is_kept, text in ((False, whole[:begin]), (True, whole[:end])):
        params = msgspec.structs.replace(
            WHOLE, stop_regex=pattern, include_stop_str_in_output=is_kept
        )
        output = running.client.submit(PROMPT, params).result()
        assert (output.text, output.finish_reason) == (text, "stop")
        assert len(output.token_ids) < MAX_TOKENS
        body = {
            **{"prompt": PROMPT, "seed": 3, "max_tokens": MAX_TOKENS, "min_tokens": MAX_TOKENS},
            **{"stop_regex": pattern, "include_stop_str_in_output": is_kept},
        }
        answer = post(port, COMPLETIONS, body).json()["choices"][0]
        assert (answer["text"], answer["finish_reason"]) == (text, "stop")
        stream = list(events(port, COMPLETIONS, {**body, "stream": True}))
        assert "".join(one["choices"][0]["text"] for one in stream[:-1]) == text


def test_a_replaced_detokenizer_stops_at_the_same_place(
    tree: tuple[RunningTree, int], whole: str
) -> None:
    running, _ = tree
    pattern, begin, _ = late_pattern(whole)
    stream = running.client.submit(PROMPT, msgspec.structs.replace(WHOLE, stop_regex=pattern))
    chunks = iter(stream)
    text = ""
    while len(text) < 10:
        text += next(chunks).text
    old_pid = running.kill("detokenizer-0", signal.SIGKILL)
    text += "".join(chunk.text for chunk in chunks)
    assert text == whole[:begin]
    running.wait_replaced("detokenizer-0", old_pid)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|b)*a(a|b){20}", "(?=a)b", r"(a)\1", "x*"])
def test_a_pattern_that_cannot_be_used_is_refused_by_its_key(
    tree: tuple[RunningTree, int], pattern: str
) -> None:
    running, port = tree
    with pytest.raises(InvalidRequest) as caught:
        running.client.submit(PROMPT, SamplingParams(stop_regex=pattern)).result()
    assert caught.value.fields["param"] == "stop_regex"
    for stream in (False, True):
        body = {"prompt": PROMPT, "stop_regex": pattern, "stream": stream}
        answer = post(port, COMPLETIONS, body)
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "stop_regex"
        assert "stop_regex" in answer.json()["error"]["message"]
