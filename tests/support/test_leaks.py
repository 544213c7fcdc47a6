"""The leak check must see each kind of leak, and nothing where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import posix_ipc
import pytest

from hybridgen.ipc.channel import Dealer
from hybridgen.messages import ClientReply, Decoder
from tests.support.eventually import eventually
from tests.support.leaks import holdings


@contextmanager
def leaked_segment() -> Iterator[None]:
    name = f"/hybridgen.{os.getpid()}.leak"
    posix_ipc.SharedMemory(name, posix_ipc.O_CREX).close_fd()
    yield
    posix_ipc.unlink_shared_memory(name)


@contextmanager
def leaked_descriptor() -> Iterator[None]:
    fds = os.pipe()
    yield
    for fd in fds:
        os.close(fd)


@contextmanager
def leaked_child() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield
        child.kill()


@contextmanager
def leaked_socket() -> Iterator[None]:
    with closing(Dealer("ipc:///tmp/hybridgen-nobody", b"x", Decoder(ClientReply))):
        yield


@pytest.mark.parametrize(
    ("leak", "says"),
    [
        (leaked_segment, "/dev/shm/hybridgen"),
        (leaked_descriptor, "pipe:"),
        (leaked_child, "child process"),
        (leaked_socket, "ZeroMQ"),
    ],
)
def test_a_leak_is_seen_while_it_lasts(leak: Callable[..., Iterator[None]], says: str) -> None:
    baseline = holdings()
    assert holdings().beyond(baseline) == []
    with leak():  # type: ignore[attr-defined]
        assert any(says in line for line in holdings().beyond(baseline))
    eventually(lambda: holdings().beyond(baseline) == [])


def test_eventually_gives_up_with_the_name_of_what_did_not_happen() -> None:
    def moon_is_cheese() -> bool:
        return False

    with pytest.raises(AssertionError, match="moon_is_cheese"):
        eventually(moon_is_cheese, 0.002)
