"""The control socket between the supervisor and one child: frames, and descriptors with them.

A pair of AF_UNIX SEQPACKET sockets keeps frames whole and ends with the process at its other end,
so each side learns of the other's death by reading.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from array import array
from collections.abc import Sequence

from hybridgen.errors import ChannelTimeout, InternalError, MessageCorrupt, PeerGone

MAX_FRAME_BYTES = 128 * 1024  # below the kernel's default send buffer of 208 KiB
MAX_FDS = 16
_FD_BYTES = array("i").itemsize
_RIGHTS_BYTES = socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class ControlSocket:
    """One end of a control pair. Owns its descriptor."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def send(self, frame: bytes, fds: Sequence[int] = (), timeout_s: float = 1.0) -> None:
        """Send one frame, with copies of ``fds``.

        Raises:
            InternalError: an empty or too large frame, or too many descriptors.
            PeerGone: the other process closed its end or died.
            ChannelTimeout: it does not read; nothing was sent.
        """
        if not 0 < len(frame) <= MAX_FRAME_BYTES:
            raise InternalError("a bad control frame size", value=len(frame), limit=MAX_FRAME_BYTES)
        if len(fds) > MAX_FDS:
            raise InternalError("too many descriptors", value=len(fds), limit=MAX_FDS)
        rights = array("i", fds).tobytes()
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self._socket.sendmsg([frame], ancillary, _FLAGS)
            except BlockingIOError:
                self._wait_writable(deadline_s, timeout_s)
            except ConnectionError:
                raise _gone() from None
            else:
                return

    def receive(self, timeout_s: float) -> tuple[bytes, list[int]] | None:
        """The next frame and the descriptors that came with it, or None after ``timeout_s``.

        The descriptors belong to the caller and close on exec.

        Raises:
            PeerGone: the other process closed its end or died, and all its frames were read.
            MessageCorrupt: a frame with more bytes or descriptors than allowed; it is dropped.
            OSError: descriptors came for which this process has no room; they are lost.
        """
        if not self._poll.poll(max(0, round(timeout_s * 1000))):
            return None
        try:
            frame, ancillary, flags, _ = self._socket.recvmsg(
                MAX_FRAME_BYTES, _RIGHTS_BYTES, _FLAGS | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except ConnectionError:
            raise _gone() from None
        fds = _received_fds(ancillary)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            for fd in fds:
                os.close(fd)
            if flags & socket.MSG_CTRUNC and len(fds) < MAX_FDS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a control socket")
            raise MessageCorrupt("a control frame was cut off", limit=MAX_FRAME_BYTES)
        if not frame:
            raise _gone()
        return frame, fds

    def fileno(self) -> int:
        """Descriptor, to poll or to hand to the child."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end; safe to repeat."""
        self._socket.close()

    def __enter__(self) -> ControlSocket:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _wait_writable(self, deadline_s: float, timeout_s: float) -> None:
        left_s = deadline_s - time.monotonic()
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        if left_s <= 0 or not writable.poll(left_s * 1000):
            raise ChannelTimeout(
                "the other side of a control socket does not read",
                value=f"{timeout_s} s",
                remedy="The supervisor replaces a process that hangs",
            )


def control_pair() -> tuple[ControlSocket, ControlSocket]:
    """Two connected ends; hand one to the child with ``pass_fds``, then close it here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return ControlSocket(ours.detach()), ControlSocket(theirs.detach())


def _received_fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) // _FD_BYTES * _FD_BYTES])
    return list(fds)


def _gone() -> PeerGone:
    return PeerGone("the other side of a control socket is gone")
