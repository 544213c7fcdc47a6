from __future__ import annotations

from types import TracebackType
from typing import Any

import pytest

from hybridgen.client.chunk import StreamChunk
from hybridgen.launch.answer import Speed, stream_answer
from hybridgen.launch.conversation import Conversation
from hybridgen.request import SamplingParams


class ScriptedStream:
    """Gives its chunks, then interrupts if told to."""

    def __init__(self, chunks: list[StreamChunk], *, is_interrupted: bool) -> None:
        self.chunks = chunks
        self.is_interrupted = is_interrupted
        self.is_cancelled = False

    def __iter__(self) -> Any:
        yield from self.chunks
        if self.is_interrupted:
            raise KeyboardInterrupt

    def cancel(self) -> None:
        self.is_cancelled = True

    def __enter__(self) -> ScriptedStream:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        return None


class ScriptedClient:
    """Answers every prompt with the same stream."""

    def __init__(self, *, is_interrupted: bool = False) -> None:
        self.prompts: list[Any] = []
        chunks = [StreamChunk("Hel", [1, 2]), StreamChunk("lo", [3])]
        self.stream = ScriptedStream(chunks, is_interrupted=is_interrupted)

    def submit(self, prompt: Any, _params: SamplingParams) -> ScriptedStream:
        self.prompts.append(prompt)
        return self.stream


def test_an_answer_is_printed_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    text, speed = stream_answer(ScriptedClient(), "x", SamplingParams())  # type: ignore[arg-type]
    assert text == "Hello"
    assert capsys.readouterr().out == "Hello\n"
    assert speed.num_tokens == 3
    assert 0.0 < speed.first_token_s <= speed.total_s


def test_an_interrupt_cancels_and_keeps_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    client = ScriptedClient(is_interrupted=True)
    text, _ = stream_answer(client, "x", SamplingParams())  # type: ignore[arg-type]
    assert text == "Hello"
    assert client.stream.is_cancelled
    assert capsys.readouterr().out == "Hello\n"


def test_a_conversation_remembers_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    client = ScriptedClient()
    conversation = Conversation(client, SamplingParams(), "Be brief.")  # type: ignore[arg-type]
    conversation.ask("One?")
    conversation.ask("Two?")
    roles = [(message["role"], message["content"]) for message in client.prompts[1]]
    assert roles == [
        *[("system", "Be brief."), ("user", "One?"), ("assistant", "Hello"), ("user", "Two?")]
    ]
    assert "tokens/s" in capsys.readouterr().err


def test_speed_counts_the_tokens_after_the_first() -> None:
    assert str(Speed(11, 0.5, 1.5)) == "11 tokens, 10.0 tokens/s, first token after 0.500 s"
    assert "2.0 tokens/s" in str(Speed(1, 0.5, 0.5))
    assert "0 tokens" in str(Speed(0, 0.0, 0.0))
