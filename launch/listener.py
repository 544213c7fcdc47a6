"""The listening socket of a tree: bound before anything is started, kept for every gateway.

The supervisor holds it, the gateways only accept on it. So a port that is taken is known at once,
clients can connect while the tree loads, and those that come while a gateway is being replaced wait
for its successor in the kernel's queue instead of being refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from hybridgen.config import LISTEN_BACKLOG, HttpSection
from hybridgen.errors import AddressUnavailable, AlreadyRunning, ConfigError, NotPermitted
from hybridgen.ipc.file_lock import FileLock
from hybridgen.ipc.runtime_dir import MAX_SOCKET_PATH_BYTES

PROBE_TIMEOUT_S = 1.0
MAX_UNSENT_BYTES = 64 * 1024
_TAKEN = {errno.EADDRINUSE: "is taken", errno.EADDRNOTAVAIL: "is not on this machine"}


class Listener:
    """A listening socket.

    Args:
        sock: listens.
        path: of a unix domain socket, removed at the end.
        lock: on that path.
    """

    def __init__(
        self, sock: socket.socket, path: Path | None = None, lock: FileLock | None = None
    ) -> None:
        self._socket = sock
        self._path = path
        self._lock = lock

    def fileno(self) -> int:
        """Descriptor for a gateway to inherit; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Listen no more once the last gateway has closed its copy too; safe to repeat."""
        self._socket.close()
        if self._lock is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._lock.release(is_removed=True)
            self._lock = None


@contextlib.contextmanager
def listening(config: HttpSection) -> Iterator[Listener | None]:
    """Listen where the configuration says; None for a tree without gateways.

    Raises:
        AddressUnavailable: the address is taken, forbidden, or not on this machine.
        ConfigError: a path that cannot hold a socket.
    """
    if config.num_gateways <= 0:
        yield None
        return
    is_unix = bool(config.uds)
    listener = listen_unix(Path(config.uds)) if is_unix else listen_tcp(config.host, config.port)
    try:
        yield listener
    finally:
        listener.close()


def listen_tcp(host: str, port: int) -> Listener:
    """A TCP socket that nobody else can share.

    Raises:
        AddressUnavailable: the port is taken, or the address not on this machine.
        NotPermitted: this user may not listen there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as on_failure:
            sock = on_failure.enter_context(socket.socket(family, kind, protocol))
            # Connections of a predecessor that died may still be winding down.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Of what clients do not take, the kernel keeps little; accepted sockets inherit it.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG)
            on_failure.pop_all()
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise NotPermitted(
                "the address to listen on is not for this user",
                value=f"{host} port {port}",
                remedy="Choose a --port from 1024 on, or allow it (CAP_NET_BIND_SERVICE)",
            ) from None
        reason = _TAKEN.get(error.errno or 0, f"cannot be used: {error.strerror}")
        raise AddressUnavailable(
            f"the address to listen on {reason}",
            value=f"{host} port {port}",
            remedy="Choose another --port or --host, or end whoever listens there (`ss -ltnp`)",
        ) from None
    return Listener(sock)


def listen_unix(path: Path) -> Listener:
    """A unix domain socket that only this user can connect to.

    A lock beside it, which the kernel releases with its holder, tells a socket in use from one that
    a killed server left behind; only the latter is replaced.

    Raises:
        AddressUnavailable: somebody listens there.
        ConfigError: the path cannot hold a socket, or others could replace it.
    """
    path = Path(os.path.abspath(path))
    _check_place(path)
    try:
        lock = FileLock.acquire(path.with_name(f"{path.name}.lock"))
    except AlreadyRunning as error:
        raise _in_use(path, f"process {error.fields['pid']} holds it") from None
    except OSError as error:
        raise _unusable(path, f"its lock cannot be made: {error.strerror}") from None
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(lock.release, is_removed=True)
        _remove_stale(path)
        sock = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            sock.bind(str(path))
            on_failure.callback(path.unlink, missing_ok=True)
            path.chmod(0o600)  # nobody can connect before it listens
            sock.listen(LISTEN_BACKLOG)
        except OSError as error:
            raise _unusable(path, f"it cannot be listened on: {error.strerror}") from None
        on_failure.pop_all()
    return Listener(sock, path, lock)


def _check_place(path: Path) -> None:
    """The path must fit, and its directory be there and not everybody's to write to."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise _unusable(path, f"it is longer than {MAX_SOCKET_PATH_BYTES} bytes")
    try:
        mode = path.parent.stat().st_mode
    except OSError as error:
        raise _unusable(path, f"its directory cannot be used: {error.strerror}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        raise _unusable(path, f"others may replace it: its directory has mode {mode & 0o7777:04o}")


def _remove_stale(path: Path) -> None:
    """Remove what a killed server left; the lock is ours, so no server of this kind uses it."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _unusable(path, "a file of another kind is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise _in_use(path, f"whose it is cannot be told: {error.strerror}") from None
    raise _in_use(path, "somebody listens there")


def _in_use(path: Path, reason: str) -> AddressUnavailable:
    return AddressUnavailable(
        f"the socket to listen on is taken: {reason}",
        value=str(path),
        remedy="Choose another --uds, or end whoever listens there (`ss -lxp`)",
    )


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the path of --uds cannot be used: {reason}",
        value=str(path),
        remedy="Choose a path in a directory of your own, such as $XDG_RUNTIME_DIR",
    )
