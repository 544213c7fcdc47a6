"""Why a tree did not start, in the child's own words where there are any."""

from __future__ import annotations

from collections.abc import Iterable

from hybridgen.errors import HybridGenError, StartFailed
from hybridgen.launch.child import Child
from hybridgen.launch.fleet import Member


def start_failed(child: Child, member: Member) -> HybridGenError:
    """What the child itself said, else how it ended."""
    if child.failure is not None:
        return child.failure.error.exception()
    return StartFailed(
        f"{member.plan.name} ended before it was ready: {member.last_exit}",
        remedy="Its own messages above say why; run `hybridgen doctor`",
        process=member.plan.name,
    )


def start_timed_out(members: Iterable[Member], limit_s: float) -> HybridGenError:
    """Who was not ready in time."""
    late = [member.name for member in members if not member.is_ready]
    return StartFailed(
        f"not ready in time: {', '.join(late)}",
        limit=f"{limit_s} s",
        remedy="Raise --start-timeout-s, or see their own messages above",
    )
