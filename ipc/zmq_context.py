"""The ZeroMQ context that all sockets of a process share: there while any of them is open.

The context's thread and descriptors end with the last socket, so a process that closes what it
opened is back where it began.
"""

from __future__ import annotations

import threading

import zmq

_lock = threading.Lock()  # private to this process
_context: zmq.Context[zmq.Socket[bytes]] | None = None
_num_users = 0


def acquire() -> zmq.Context[zmq.Socket[bytes]]:
    """The shared context; pair each call with one ``release``."""
    global _context, _num_users  # noqa: PLW0603  # one context per process is what ZeroMQ wants
    with _lock:
        if _context is None:
            _context = zmq.Context()
        _num_users += 1
        return _context


def release() -> None:
    """Give it back after closing the socket; the last one ends the context."""
    global _context, _num_users  # noqa: PLW0603  # see acquire
    with _lock:
        _num_users -= 1
        if _num_users == 0 and _context is not None:
            _context.term()
            _context = None


def num_users() -> int:
    """Sockets that hold the context (leak checks)."""
    return _num_users
