"""The line between a tree and the process that started it for itself (LLM, `chat`).

One socket, inherited: the tree says once how its start went, as one JSON line; the end of the
owner, however it comes, is the end of the line and so of the tree.
"""

from __future__ import annotations

import socket

import msgspec

from hybridgen.errors import HybridGenError
from hybridgen.messages import ErrorInfo


class StartResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a start went: an address, or the error."""

    uri: str = ""
    error: ErrorInfo | None = None


class OwnerLine:
    """The tree's end of the line.

    Args:
        fd: inherited descriptor.
    """

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)
        self.socket.set_inheritable(False)
        self.is_told = False

    def tell_ready(self, uri: str) -> None:
        """The tree serves at ``uri``."""
        self._tell(StartResult(uri=uri))

    def tell_failed(self, error: HybridGenError) -> None:
        """The tree cannot start, or gave up."""
        self._tell(StartResult(error=ErrorInfo.of(error)))

    def _tell(self, result: StartResult) -> None:
        self.is_told = True
        try:
            self.socket.sendall(msgspec.json.encode(result) + b"\n")
        except OSError:
            return  # the owner is gone; the supervisor learns that from the same socket
