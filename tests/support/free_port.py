"""A TCP port that nobody uses at the moment."""

from __future__ import annotations

import secrets
import socket

#: Below the ports that the kernel gives to outgoing connections: none of those takes it meanwhile.
LOWEST, HIGHEST = 20_000, 30_000


def free_port() -> int:
    """Free a moment ago; two tests at once hardly ever get the same one."""
    while True:
        port = LOWEST + secrets.randbelow(HIGHEST - LOWEST)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
