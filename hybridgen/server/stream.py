"""A generation on its way to the client as events."""

from __future__ import annotations

from collections.abc import Sequence

from hybridgen.client.chunk import StreamChunk
from hybridgen.request import RequestOutput
from hybridgen.server.backend import BackendStream
from hybridgen.server.event_stream import EventStream
from hybridgen.server.events import DONE, EventEncoder
from hybridgen.server.generation import Generation
from hybridgen.server.merge import Merge


async def stream_generation(
    generation: Generation,
    streams: Sequence[BackendStream],
    encoder: EventEncoder,
    events: EventStream,
) -> None:
    """Send all pieces as they arrive: one frame per piece, the opening of a choice with its first.

    Args:
        generation: what was asked.
        streams: one running request per choice, in the order of the choices.
        encoder: makes the frames.
        events: where they go.

    Raises:
        HybridGenError: the typed error that ended one of them; the others are left to the caller.
    """
    outputs: dict[int, RequestOutput] = {}
    opened: set[int] = set()
    last_frame = b""
    async with Merge(streams) as pieces:
        async for index, piece in pieces:
            if isinstance(piece, StreamChunk):
                frame = encoder.delta(index, piece)
            else:
                outputs[index] = piece
                frame = encoder.finish(index, piece.finish_reason, piece.seed)
            if index not in opened:
                opened.add(index)
                frame = encoder.first(index) + frame
            if len(outputs) == len(streams):
                last_frame = frame
            elif frame:
                await events.send(frame)
    # The last choice's end and the stream's are known together.
    await events.send(last_frame + _usage(generation, outputs, encoder) + DONE, is_last=True)


def _usage(
    generation: Generation, outputs: dict[int, RequestOutput], encoder: EventEncoder
) -> bytes:
    if not generation.includes_usage:
        return b""
    in_order = [outputs[index] for index in sorted(outputs)]
    return encoder.usage(in_order)
