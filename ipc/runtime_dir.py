"""The directory where an instance keeps its sockets, and the addresses in it.

::

    <runtime dir>/           mode 0700, owned by the user of the server
      lock                   flock of the supervisor; holds its pid
      clients.sock           client ↔ coscheduler
      workers.sock           worker ↔ coscheduler
      admin.sock             admin client ↔ supervisor
      text-<n>.sock          client ↔ detokenizer n
      sockets → …            only when the paths above would be longer than a socket address may be

A client's URI is ``hybridgen://`` + the directory's absolute path.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

from hybridgen.errors import ConfigError, NotPermitted, PeerGone
from hybridgen.ipc.file_lock import FileLock

URI_SCHEME = "hybridgen://"
MAX_SOCKET_PATH_BYTES = 107
"""sun_path holds 108 bytes with its closing NUL."""

_LONGEST_NAME = "text-9999.sock"
_SOCKETS_LINK = "sockets"

SUPERVISOR_IDENTITY = b"supervisor"
"""By which the workers socket knows the supervisor; a worker's identity is its name."""


def gateway_prefix(index: int, incarnation: int) -> bytes:
    """How the identity begins by which the clients socket knows one gateway's client."""
    return b"g" + index.to_bytes(1, "big") + incarnation.to_bytes(4, "big")


class Endpoints:
    """Addresses of the sockets of one instance."""

    def __init__(self, path: Path) -> None:
        self._dir = socket_dir(path)

    @property
    def clients(self) -> str:
        """Coscheduler, for clients."""
        return self._address("clients.sock")

    @property
    def workers(self) -> str:
        """Coscheduler, for workers."""
        return self._address("workers.sock")

    @property
    def admin(self) -> str:
        """Supervisor, for admin clients."""
        return self._address("admin.sock")

    def text(self, index: int) -> str:
        """Detokenizer ``index``, for clients."""
        return self._address(f"text-{index}.sock")

    def _address(self, name: str) -> str:
        return f"ipc://{self._dir / name}"


class RuntimeDir:
    """A runtime directory, held by a server or looked into by a client."""

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        self.path = path
        self._lock = lock
        self.endpoints = Endpoints(path)

    @property
    def uri(self) -> str:
        """What clients connect to."""
        return URI_SCHEME + quote(str(self.path))

    @classmethod
    def create(cls, path: Path | None, instance: str) -> RuntimeDir:
        """Make or reuse the directory, take its lock, sweep sockets that a killed server left.

        Args:
            path: where; None for a fresh one per instance.
            instance: short hex name of the tree.

        Raises:
            AlreadyRunning: another server holds it; field ``pid``.
            ConfigError: it is not a private directory of this user.
        """
        if path is None:
            path = instance_path(instance)
        path = Path(os.path.abspath(path))
        _check_name(path)
        _make_private(path)
        lock = FileLock.acquire(path / "lock")
        try:
            sockets = _prepare_socket_dir(path)
            _sweep(sockets)
        except BaseException:
            lock.release()
            raise
        return cls(path, lock)

    @classmethod
    def open(cls, path: Path) -> RuntimeDir:
        """The directory of a running server, for a client.

        Raises:
            PeerGone: there is none.
            ConfigError: it belongs to somebody else.
        """
        path = Path(os.path.abspath(path))
        if not os.path.isdir(path):  # a name that is too long is no error to it
            raise PeerGone(
                "no server runs there", value=str(path), remedy="Start one with `hybridgen serve`"
            )
        _check_owner(socket_dir(path))
        return cls(path)

    def remove(self) -> None:
        """Remove sockets and directory and let the lock go; files of others are left."""
        if self._lock is None:
            return
        sockets = socket_dir(self.path)
        _sweep(sockets)
        if sockets != self.path:
            sockets.rmdir()
            (self.path / _SOCKETS_LINK).unlink(missing_ok=True)
        self._lock.release(is_removed=True)
        self._lock = None
        if not any(self.path.iterdir()):
            self.path.rmdir()


def parse_uri(uri: str) -> Path:
    """The runtime directory that a client URI names.

    Raises:
        ConfigError: it is not ``hybridgen://`` and an absolute path.
    """
    path = unquote(uri.removeprefix(URI_SCHEME))
    if not uri.startswith(URI_SCHEME) or not os.path.isabs(path) or "\0" in path:
        raise ConfigError(
            "a server address cannot be read",
            value=uri,
            limit=f"{URI_SCHEME}<absolute runtime directory>",
            remedy="Copy it from the server's banner or its --uri-file",
        )
    return Path(path)


def parse_target(target: str) -> Path:
    """The runtime directory that a client URI or a plain path names.

    Raises:
        ConfigError: it is neither; an empty text is an address that got lost, not ``.``.
    """
    is_path = target != "" and not target.startswith(URI_SCHEME)
    return Path(target) if is_path else parse_uri(target)


def base_dir() -> Path:
    """Where runtime directories are made by default."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())


def instance_path(instance: str) -> Path:
    """The default runtime directory of the tree called ``instance``."""
    return base_dir() / f"hybridgen-{os.geteuid()}-{instance}"


def socket_dir(path: Path) -> Path:
    """Where the sockets of the runtime directory ``path`` lie: there, or where its link points."""
    if _fits(path):
        return path
    link = path / _SOCKETS_LINK
    if os.path.islink(link):
        return Path(os.readlink(link))
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    place = instance_path(digest)
    return place if _fits(place) else Path(tempfile.gettempdir()) / place.name


def _fits(directory: Path) -> bool:
    return len(os.fsencode(directory / _LONGEST_NAME)) <= MAX_SOCKET_PATH_BYTES


def _prepare_socket_dir(path: Path) -> Path:
    sockets = socket_dir(path)
    if sockets != path:
        _make_private(sockets)
        link = path / _SOCKETS_LINK
        if not link.is_symlink():
            link.symlink_to(sockets)
    return sockets


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            "the runtime directory's name is no valid UTF-8",
            value=ascii(str(path)),
            remedy="Choose another --runtime-dir",
        ) from None


def _make_private(path: Path) -> None:
    """Create ``path`` with mode 0700 whatever the umask, or check that it is ours and private."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_dir():
            path.mkdir(mode=0o700)
            path.chmod(0o700)
    except OSError as error:
        kind = NotPermitted if isinstance(error, PermissionError) else ConfigError
        raise kind(
            f"the runtime directory cannot be made: {error.strerror}",
            value=str(path),
            remedy="Choose another --runtime-dir",
        ) from None
    _check_owner(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            "the runtime directory is open to other users",
            value=f"{path} has mode {mode:04o}",
            limit="0700",
            remedy=f"chmod 700 {path}",
        )


def _check_owner(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return  # the server is still starting; connecting is retried
    owners = {os.geteuid()} if os.geteuid() else {0, status.st_uid}
    if stat.S_ISDIR(status.st_mode) and status.st_uid in owners:
        return
    raise ConfigError(
        "the runtime directory is not a directory of this user",
        value=str(path),
        limit=f"a directory owned by uid {os.geteuid()}",
        remedy="Choose another --runtime-dir",
    )


def _sweep(directory: Path) -> None:
    for pattern in ("*.sock", "*.sock.lock"):
        for leftover in directory.glob(pattern):
            leftover.unlink(missing_ok=True)
