"""Several running requests read as one, in the order in which their text arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

from hybridgen.client.chunk import StreamChunk
from hybridgen.request import RequestOutput
from hybridgen.server.backend import BackendStream

#: (choice, what it brought); a result is the last of its choice.
Piece = tuple[int, StreamChunk | RequestOutput]


async def read_one(index: int, stream: BackendStream) -> AsyncIterator[Piece]:
    """The pieces of one stream.

    Raises:
        HybridGenError: the typed error that ended it.
    """
    while True:
        try:
            chunk = await anext(stream)
        except StopAsyncIteration:
            break
        yield index, chunk
    yield index, await stream.result()


class Merge:
    """The pieces of several streams; at most one of each waits here.

    An async context manager; iterate inside.

    Raises (on iterating):
        HybridGenError: the first typed error of any of them.
    """

    def __init__(self, streams: Sequence[BackendStream]) -> None:
        self._streams = streams
        self._arrived: asyncio.Queue[Piece | Exception] = asyncio.Queue(len(streams))
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> AsyncIterator[Piece]:
        if len(self._streams) == 1:  # as most are: no task and no queue in between
            return read_one(0, self._streams[0])
        self._tasks = [
            asyncio.create_task(self._forward(index, stream))
            for index, stream in enumerate(self._streams)
        ]
        return self._pieces()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, index: int, stream: BackendStream) -> None:
        try:
            async for piece in read_one(index, stream):
                await self._arrived.put(piece)
        except Exception as error:  # noqa: BLE001  # raised again where the pieces are read
            await self._arrived.put(error)

    async def _pieces(self) -> AsyncIterator[Piece]:
        num_open = len(self._streams)
        while num_open:
            piece = await self._arrived.get()
            if isinstance(piece, Exception):
                raise piece
            num_open -= isinstance(piece[1], RequestOutput)
            yield piece
