"""Control sockets: whole frames, descriptors, and the news of a death."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time

import pytest

from hybridgen.errors import ChannelTimeout, InternalError, MessageCorrupt, PeerGone
from hybridgen.ipc.control import MAX_FDS, MAX_FRAME_BYTES, ControlSocket, control_pair


def test_frames_arrive_whole_and_in_order() -> None:
    ours, theirs = control_pair()
    with ours, theirs:
        frames = [b"a", b"b" * MAX_FRAME_BYTES, b"c"]
        ours.send(frames[0])
        assert theirs.receive(1.0) == (frames[0], [])
        ours.send(frames[1])
        assert theirs.receive(1.0) == (frames[1], [])
        theirs.send(frames[2])
        assert ours.receive(1.0) == (frames[2], [])


def test_nothing_to_receive_is_none_after_the_time_limit() -> None:
    ours, theirs = control_pair()
    with ours, theirs:
        started_s = time.monotonic()
        assert ours.receive(0.01) is None
        assert ours.receive(0.0) is None
        assert 0.01 <= time.monotonic() - started_s < 5.0


def test_descriptors_travel_with_their_frame_and_close_on_exec() -> None:
    ours, theirs = control_pair()
    read_end, write_end = os.pipe()
    with ours, theirs:
        ours.send(b"two", [read_end, write_end])
        received = theirs.receive(1.0)
        assert received is not None
        frame, fds = received
        assert (frame, len(fds)) == (b"two", 2)
        assert not any(os.get_inheritable(fd) for fd in fds)
        os.write(fds[1], b"x")
        assert os.read(read_end, 1) == b"x"
    for fd in (read_end, write_end, *fds):
        os.close(fd)


@pytest.mark.parametrize("frame", [b"", b"x" * (MAX_FRAME_BYTES + 1)])
def test_an_empty_or_too_large_frame_is_refused(frame: bytes) -> None:
    ours, theirs = control_pair()
    with ours, theirs, pytest.raises(InternalError, match="frame size"):
        ours.send(frame)


def test_an_oversized_frame_of_a_peer_is_an_error_and_leaks_no_descriptor() -> None:
    ours, theirs = control_pair()
    raw = socket.socket(fileno=os.dup(theirs.fileno()))
    with ours, theirs, raw:
        socket.send_fds(raw, [b"x" * (MAX_FRAME_BYTES + 1)], [0])
        with pytest.raises(MessageCorrupt):
            ours.receive(1.0)
        theirs.send(b"next")
        assert ours.receive(1.0) == (b"next", [])


def test_descriptors_without_room_are_no_fault_of_the_frame() -> None:
    ours, theirs = control_pair()
    raw = socket.socket(fileno=os.dup(theirs.fileno()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ours, theirs, raw:
        theirs.send(b"two", [0, 0])
        socket.send_fds(raw, [b"too many"], [0] * (MAX_FDS + 1))
        resource.setrlimit(resource.RLIMIT_NOFILE, (raw.fileno() + 2, hard))  # room for one
        try:
            with pytest.raises(OSError, match="Too many open files"):
                ours.receive(1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with pytest.raises(MessageCorrupt):
            ours.receive(1.0)


def test_a_peer_that_does_not_read_is_a_timeout() -> None:
    ours, theirs = control_pair()

    def send_until_full() -> None:
        for _ in range(100):
            ours.send(b"x" * MAX_FRAME_BYTES, timeout_s=0.01)

    with ours, theirs, pytest.raises(ChannelTimeout):
        send_until_full()


def test_a_closed_peer_is_gone_after_its_last_frame() -> None:
    ours, theirs = control_pair()
    with ours:
        theirs.send(b"last words")
        theirs.close()
        assert ours.receive(1.0) == (b"last words", [])
        with pytest.raises(PeerGone):
            ours.receive(1.0)
        with pytest.raises(PeerGone):
            ours.send(b"anyone?")


def test_a_killed_child_is_gone_for_its_supervisor() -> None:
    ours, theirs = control_pair()
    script = (
        "import sys, time; from hybridgen.ipc.control import ControlSocket\n"
        "control = ControlSocket(int(sys.argv[1])); control.send(b'up'); time.sleep(60)\n"
    )
    with ours:
        fd = theirs.fileno()
        with subprocess.Popen([sys.executable, "-c", script, str(fd)], pass_fds=[fd]) as child:
            theirs.close()
            assert ours.receive(10.0) == (b"up", [])
            child.kill()
            with pytest.raises(PeerGone):
                ours.receive(10.0)


def test_a_control_socket_can_be_made_from_an_inherited_descriptor() -> None:
    ours, theirs = control_pair()
    inherited = ControlSocket(os.dup(theirs.fileno()))
    theirs.close()
    with ours, inherited:
        ours.send(b"hello")
        assert inherited.receive(1.0) == (b"hello", [])
