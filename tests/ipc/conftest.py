"""Sockets need short paths; pytest's own temporary directories are often too deep."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A private directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="hg", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
