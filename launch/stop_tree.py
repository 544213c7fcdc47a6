"""Asks a running tree to end and waits until it is gone."""

from __future__ import annotations

import contextlib
import os
import select

from hybridgen.client.client import Client
from hybridgen.errors import ChannelTimeout, PeerGone
from hybridgen.ipc.board import Role

#: A tree without a limit of its own in the order may have any; this is how long `stop` waits.
DEFAULT_WAIT_S = 600.0
#: Beyond the drain limit: the supervisor's slack and grace, and its clean-up.
SLACK_S = 10.0


def stop_tree(uri: str, drain_timeout_s: float | None) -> None:
    """Drain and end the tree at ``uri``.

    Raises:
        PeerGone: nobody is there.
        ChannelTimeout: it did not end in time.
    """
    with Client(uri) as client:
        supervisor = next(p for p in client.ps().processes if p.role == Role.SUPERVISOR.label)
        pidfd = os.pidfd_open(supervisor.pid)
        try:
            # It may have ended before it was heard to agree.
            with contextlib.suppress(PeerGone, ChannelTimeout):
                client.stop(drain_timeout_s)
            limit_s = DEFAULT_WAIT_S if drain_timeout_s is None else drain_timeout_s + SLACK_S
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(limit_s * 1000):
                raise ChannelTimeout(
                    "the tree has not ended",
                    value=f"process {supervisor.pid}",
                    limit=f"{limit_s} s",
                    remedy="Send SIGTERM twice to that process to end it now",
                )
        finally:
            os.close(pidfd)
