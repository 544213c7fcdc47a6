"""Messages that the coscheduler wants to have sent, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hybridgen.errors import HybridGenError
from hybridgen.messages import (
    ClientReply,
    DetokenizerOrder,
    ErrorInfo,
    GpuOrder,
    RequestFinished,
    SupervisorFact,
    TokenizerOrder,
)
from hybridgen.request import FinishReason

WorkerOrder = TokenizerOrder | GpuOrder | DetokenizerOrder


class ToClient(NamedTuple):
    """For the client with this ZeroMQ identity."""

    client_id: bytes
    message: ClientReply


class ToWorker(NamedTuple):
    """For the worker of this name, such as ``gpu-0``."""

    name: str
    message: WorkerOrder


class ToSupervisor(NamedTuple):
    """For the supervisor."""

    message: SupervisorFact


Addressed = ToClient | ToWorker | ToSupervisor


class Outbox:
    """A list with names for its three kinds of addressee."""

    def __init__(self) -> None:
        self._items: list[Addressed] = []
        #: Clients inside this process: they hear at once what is said to them.
        self.listeners: dict[bytes, Callable[[ClientReply], None]] = {}

    def to_client(self, client_id: bytes, message: ClientReply) -> None:
        """Queue a message for a client."""
        listener = self.listeners.get(client_id)
        if listener is None:
            self._items.append(ToClient(client_id, message))
        else:
            listener(message)

    def refuse(self, client_id: bytes, request_id: bytes, error: HybridGenError) -> None:
        """Queue the final message of a request that never was one."""
        self.to_client(
            client_id,
            RequestFinished(
                request_id=request_id,
                finish_reason=FinishReason.ERROR.public_name or "",
                error=ErrorInfo.of(error),
            ),
        )

    def to_worker(self, name: str, message: WorkerOrder) -> None:
        """Queue an order for a worker."""
        self._items.append(ToWorker(name, message))

    def to_supervisor(self, message: SupervisorFact) -> None:
        """Queue a fact for the supervisor."""
        self._items.append(ToSupervisor(message))

    def take(self) -> list[Addressed]:
        """Everything queued since the last call."""
        items, self._items = self._items, []
        return items
