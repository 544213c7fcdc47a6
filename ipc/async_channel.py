"""Messages over ZeroMQ for clients that run on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zmq
import zmq.asyncio

from hybridgen.errors import ChannelTimeout, MessageCorrupt
from hybridgen.ipc import zmq_context
from hybridgen.ipc.channel import encode_bounded
from hybridgen.ipc.zmq_options import (
    HIGH_WATER,
    MAX_CLIENT_FRAME_BYTES,
    CurveKeys,
    apply_options,
    check_endpoint,
)
from hybridgen.messages import Decoder, Message


class AsyncDealer:
    """A DEALER socket on the running event loop; make it, use it and close it there.

    Attributes:
        num_corrupt: frames dropped because they were no message of the union.
        num_connections: how often a connection was established so far.
    """

    def __init__(
        self,
        endpoint: str,
        identity: bytes,
        decoder: Decoder,
        *,
        on_connect: Callable[[], None] | None = None,
        max_frame_bytes: int = MAX_CLIENT_FRAME_BYTES,
        high_water: int = HIGH_WATER,
        curve: CurveKeys | None = None,
    ) -> None:
        """Connect; the peer need not be there yet.

        Args:
            endpoint: of the Router.
            identity: by which the Router knows this socket, also after a reconnect.
            decoder: of the union of messages that may arrive.
            on_connect: called on the loop at the first connection and at every reconnect.
            max_frame_bytes: larger frames are refused in both directions.
            high_water: messages queued.
            curve: keys for tcp.

        Raises:
            ConfigError: an endpoint that cannot be used.
        """
        check_endpoint(endpoint, curve)
        self._decoder = decoder
        self._max_frame_bytes = max_frame_bytes
        self._on_connect = on_connect
        self.num_corrupt = 0
        self.num_connections = 0
        context = zmq.asyncio.Context.shadow(zmq_context.acquire().underlying)
        self._socket: zmq.asyncio.Socket = context.socket(zmq.DEALER)
        try:
            apply_options(
                self._socket, max_frame_bytes=max_frame_bytes, high_water=high_water, curve=curve
            )
            self._socket.routing_id = identity
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._socket.connect(endpoint)
        except BaseException:
            self._socket.close()
            zmq_context.release()
            raise
        self._watch = asyncio.get_running_loop().create_task(self._watch_connections())

    async def send(self, message: Message, timeout_s: float = 5.0) -> None:
        """Queue a message, waiting for room at most ``timeout_s``.

        Raises:
            InvalidRequest: the message cannot be sent, see ``encode_bounded``.
            ChannelTimeout: the queue stayed full.
        """
        frame = encode_bounded(message, self._max_frame_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                await self._socket.send(frame)
        except TimeoutError:
            raise ChannelTimeout(
                "the server takes no messages",
                value=f"{timeout_s} s",
                remedy="See whether it is still running with `hybridgen ps`",
            ) from None

    async def receive(self) -> Any:
        """The next message; waits until there is one or the task is cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            if len(frames) == 1:
                try:
                    return self._decoder(frames[0])
                except MessageCorrupt:
                    self.num_corrupt += 1
            else:
                self.num_corrupt += 1

    async def close(self) -> None:
        """Close at once, dropping what is queued; safe to repeat."""
        if self._socket.closed:
            return
        self._watch.cancel()
        await asyncio.wait({self._watch})
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        zmq_context.release()
        if not self._watch.cancelled():
            self._watch.result()  # raises what on_connect raised

    async def _watch_connections(self) -> None:
        while True:
            await self._monitor.recv_multipart()
            self.num_connections += 1
            if self._on_connect is not None:
                self._on_connect()
