"""A tree started for one program: ``start_tree`` runs `hybridgen serve` and waits for ready.

The tree is a process of its own session, not a part of the caller: no import of torch, no signal
of the caller's terminal, nothing forked. It ends with the caller, however that one ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping

import msgspec

from hybridgen.clock import monotonic_s
from hybridgen.config import Config
from hybridgen.errors import ChannelTimeout, StartFailed
from hybridgen.launch.config_fields import CONFIG_FILE_ENV, config_fields
from hybridgen.launch.owner import StartResult

#: A start that hangs is ended this long after the tree should have given up by itself.
START_SLACK_S = 5.0
#: Beyond the drain limit: the supervisor's own slack and grace, and its clean-up.
STOP_SLACK_S = 5.0
MAX_RESULT_BYTES = 1 << 20
SERVE_COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "hybridgen", "serve")


class TreeHandle:
    """A running tree that belongs to this process.

    Attributes:
        uri: what clients connect to.
        pid: of its supervisor.
    """

    def __init__(
        self, uri: str, process: subprocess.Popen[bytes], line: socket.socket, config: Config
    ) -> None:
        self.uri = uri
        self.pid = process.pid
        self._process = process
        self._line = line
        self._drain_timeout_s = config.server.drain_timeout_s
        _handles.add(self)

    def leave_behind(self) -> None:
        """In a forked child: the tree belongs to the parent, and may not outlive it."""
        self._line.close()
        self._process.returncode = 0  # as if it had ended: never signalled nor waited for here

    @property
    def is_running(self) -> bool:
        """The supervisor has not ended."""
        return self._process.poll() is None

    def stop(self, drain_timeout_s: float | None = None) -> int:
        """Drain and end the tree; safe to repeat.

        Args:
            drain_timeout_s: how long running requests may take; the configured limit when None.

        Returns:
            The exit code of the supervisor; 0 after an orderly end.
        """
        limit_s = self._drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(limit_s + STOP_SLACK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children follow within a second
            return self._process.wait()
        finally:
            self._line.close()

    def __enter__(self) -> TreeHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


_handles: weakref.WeakSet[TreeHandle] = weakref.WeakSet()


def _leave_all_behind() -> None:
    for handle in list(_handles):
        handle.leave_behind()


os.register_at_fork(after_in_child=_leave_all_behind)


def start_tree(
    config: Config,
    *,
    quiet: bool = True,
    timeout_s: float | None = None,
    log_fd: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> TreeHandle:
    """Start a tree and wait until every process is ready.

    Args:
        config: of the tree; the caller's environment adds nothing to it.
        quiet: print warnings and errors only, no phases and no banner.
        timeout_s: at most this long; the configured start limit when None.
        log_fd: where the tree's standard error goes; the caller's own when None.
        environment: variables on top of the caller's.

    Raises:
        HybridGenError: the root cause, as the process raised it that could not start.
    """
    ours, theirs = socket.socketpair()
    if quiet and config.server.log_level in {"debug", "info"}:
        config = msgspec.structs.replace(
            config, server=msgspec.structs.replace(config.server, log_level="warning")
        )
    process = subprocess.Popen(
        [*SERVE_COMMAND, f"--owner-fd={theirs.fileno()}", *config_flags(config)],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stderr=log_fd,
        env={**_environment(), **(environment or {})},
        start_new_session=True,
    )
    theirs.close()
    limit_s = config.server.start_timeout_s + START_SLACK_S if timeout_s is None else timeout_s
    try:
        result = _read_result(ours, process, limit_s)
        if result.error is not None:
            process.wait()
            raise result.error.exception()
    except BaseException:
        ours.close()
        process.kill()
        process.wait()
        raise
    return TreeHandle(result.uri, process, ours, config)


def config_flags(config: Config) -> list[str]:
    """The command line that gives ``config`` again: one flag per value that is no default."""
    flags: list[str] = []
    for field in config_fields().values():
        value = getattr(getattr(config, field.section), field.name)
        if value != field.default:
            text = str(value).lower() if field.is_switch else str(value)
            flags.append(f"{field.flag}={text}")
    return flags


def _environment() -> dict[str, str]:
    """The caller's environment without options: the configuration is complete as it is."""
    options = {field.env for field in config_fields().values()} | {CONFIG_FILE_ENV}
    return {name: value for name, value in os.environ.items() if name not in options}


def _read_result(
    line: socket.socket, process: subprocess.Popen[bytes], limit_s: float
) -> StartResult:
    """The tree's one line about its start.

    Raises:
        ChannelTimeout: nothing came in time.
        StartFailed: the tree ended without a word.
    """
    deadline_s = monotonic_s() + limit_s
    received = b""
    while not received.endswith(b"\n"):
        line.settimeout(max(0.001, deadline_s - monotonic_s()))
        try:
            part = line.recv(MAX_RESULT_BYTES)
        except TimeoutError:
            raise ChannelTimeout(
                "the tree is not ready in time",
                limit=f"{limit_s} s",
                remedy="Allow more time, or see what it printed",
            ) from None
        if not part:
            code = process.wait()
            raise StartFailed(
                "the tree ended before it was ready",
                value=f"exit code {code}",
                remedy="See what it printed; run `hybridgen doctor`",
            )
        received += part
    return msgspec.json.decode(received, type=StartResult)
