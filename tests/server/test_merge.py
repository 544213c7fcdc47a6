from __future__ import annotations

import asyncio

import pytest

from hybridgen.client.chunk import StreamChunk
from hybridgen.errors import InvalidLogits
from hybridgen.request import RequestOutput, SamplingParams, TextPrompt
from hybridgen.server.merge import Merge
from tests.support.front_door import play
from tests.support.scripted_backend import ScriptedStream, Step, chunks


def stream(*script: Step) -> ScriptedStream:
    return ScriptedStream(TextPrompt("x"), SamplingParams(), script, "stop")


@pytest.mark.parametrize("num_streams", [1, 2, 5])
def test_every_stream_brings_its_pieces_in_order_and_one_result(num_streams: int) -> None:
    async def scene() -> None:
        streams = [stream(*chunks(*"abc")) for _ in range(num_streams)]
        async with Merge(streams) as pieces:
            arrived = [piece async for piece in pieces]
        for index in range(num_streams):
            own = [piece for number, piece in arrived if number == index]
            assert [p.text for p in own if isinstance(p, StreamChunk)] == ["a", "b", "c"]
            assert isinstance(own[-1], RequestOutput)
            assert own[-1].text == "abc"
        assert len(arrived) == 4 * num_streams

    play(scene())


def test_a_reader_that_stops_stops_the_streams() -> None:
    async def scene() -> None:
        streams = [stream(*chunks(*["x"] * 100)) for _ in range(4)]
        async with Merge(streams) as pieces:
            await anext(pieces)
            await asyncio.sleep(0.01)
            # Four wait in the queue, one in each task's hand, one was read.
            assert sum(s.num_steps_left for s in streams) >= 400 - 4 - 4 - 1

    play(scene())


def test_leaving_early_leaves_no_task_behind() -> None:
    async def scene() -> None:
        num_tasks = len(asyncio.all_tasks())
        async with Merge([stream(asyncio.Event()) for _ in range(3)]):
            assert len(asyncio.all_tasks()) == num_tasks + 3
        assert len(asyncio.all_tasks()) == num_tasks

    play(scene())


@pytest.mark.parametrize("num_others", [0, 2])
def test_the_first_error_is_raised_to_the_reader(num_others: int) -> None:
    async def scene() -> None:
        failing = stream(*chunks("a"), InvalidLogits("NaN"))
        others = [stream(asyncio.Event()) for _ in range(num_others)]
        texts: list[str] = []

        async def read() -> None:
            async with Merge([failing, *others]) as pieces:
                async for _, piece in pieces:
                    texts.append(piece.text)

        with pytest.raises(InvalidLogits):
            await read()
        assert texts == ["a"]

    play(scene())
