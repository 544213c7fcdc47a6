"""Whom a client talks to, and whether they are there."""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """A server-side socket: the coscheduler, one detokenizer, or the supervisor's admin socket."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return f"detokenizer {self.number}" if self.kind == "text" else self.kind


COSCHEDULER = Peer("coscheduler")
ADMIN = Peer("admin")


def text_peer(index: int) -> Peer:
    """Detokenizer number ``index``."""
    return Peer("text", index)


class PeerState:
    """What is known about one peer: whether it was ever reached, and when it was last heard."""

    __slots__ = ("heard_s", "is_connected")

    def __init__(self, now_s: float) -> None:
        self.is_connected = False
        self.heard_s = now_s
