"""What waits in front of a process, and how much of it has room: from its counters, pure."""

from __future__ import annotations

from collections.abc import Mapping

from hybridgen.ipc.board import Role
from hybridgen.launch.plan import TreePlan
from hybridgen.messages import RingFill


def ring_fills(role: Role, counters: Mapping[str, int], plan: TreePlan) -> list[RingFill]:
    """The rings and queues that a process of this role works off; none for most.

    Args:
        role: of the process.
        counters: its own, from the board; none where the record was damaged.
        plan: for the room there is.
    """
    match role:
        case Role.COSCHEDULER:
            backlog = plan.config.scheduler.backlog_limit
            return [
                RingFill("waiting", counters.get("waiting", 0), backlog),
                RingFill("prompts", counters.get("encoding", 0), None),
            ]
        case Role.GPU:
            return [RingFill("logits", counters.get("open_steps", 0), plan.geometry.ring_depth)]
        case Role.DETOKENIZER:
            return [RingFill("texts", counters.get("open_texts", 0), plan.geometry.num_slots)]
        case Role.GATEWAY:
            return [RingFill("requests", counters.get("open", 0), None)]
        case _:
            return []
