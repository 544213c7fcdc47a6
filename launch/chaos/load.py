"""Clients that ask the same questions again and again and write down what they see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from hybridgen.client.async_client import AsyncClient
from hybridgen.errors import Draining, HybridGenError, QueueFull
from hybridgen.launch.chaos.history import Outcome, Piece, Question, Record

#: Deadline of every request: far more than one takes, however often its processes die.
TIMEOUT_S = 60.0
#: A refused client asks again after this.
REFUSED_PAUSE_S = 0.1


class Load:
    """Some streams at once, each with its own questions.

    Args:
        client: of the tree.
        questions: stream s asks number s, s + num_streams, … in turn.
        num_streams: requests that are open at any time.

    Attributes:
        records: every request so far, open ones included.
        num_tokens: seen so far.
    """

    def __init__(
        self, client: AsyncClient, questions: Sequence[Question], num_streams: int
    ) -> None:
        self.records: list[Record] = []
        self.num_tokens = 0
        self._client = client
        self._questions = questions
        self._num_streams = num_streams
        self._is_over = False
        self._probes: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def ask_each_once(self) -> None:
        """One request per stream: everything is connected and warm after it."""
        asking = (self._ask(number) for number in range(self._num_streams))
        await asyncio.gather(*asking)

    def start(self) -> None:
        """Let all streams ask from now on."""
        self._tasks = [
            asyncio.create_task(self._stream(number)) for number in range(self._num_streams)
        ]

    def probe(self, number: int) -> None:
        """Ask one question beside all streams, now: how soon is new work taken?"""
        self._probes.append(asyncio.create_task(self._ask(number % len(self._questions))))

    async def finish(self) -> None:
        """Ask nothing new and wait for what is open, a little beyond its deadline at most."""
        self._is_over = True
        tasks = [*self._tasks, *self._probes]
        _, late = await asyncio.wait(tasks, timeout=TIMEOUT_S + 5.0)
        for task in late:
            task.cancel()  # its record has no outcome: the checker will say so
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, number: int) -> None:
        question = number
        while not self._is_over:
            await self._ask(question)
            question = (question + self._num_streams) % len(self._questions)

    async def _ask(self, number: int) -> None:
        question = self._questions[number]
        now_s = time.monotonic()
        record = Record(number, now_s, now_s + TIMEOUT_S)
        self.records.append(record)
        stream = self._client.submit(question.prompt, question.params, timeout_s=TIMEOUT_S)
        try:
            async with stream:
                async for chunk in stream:
                    record.pieces.append(Piece(time.monotonic(), chunk.text, chunk.token_ids))
                    self.num_tokens += len(chunk.token_ids)
        except HybridGenError as error:
            record.is_accepted = not isinstance(error, QueueFull | Draining)
            record.outcomes.append(Outcome(time.monotonic(), error=error.code))
            await asyncio.sleep(REFUSED_PAUSE_S)
            return
        if stream.ended is not None:
            record.outcomes.append(
                Outcome(
                    time.monotonic(),
                    finish_reason=stream.ended.finish_reason,
                    num_tokens=stream.ended.num_tokens,
                    num_prompt_tokens=stream.ended.num_prompt_tokens,
                )
            )
