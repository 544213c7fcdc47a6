"""Whether a tree is at rest, and what it says about itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from hybridgen.client.async_client import AsyncClient
from hybridgen.errors import HybridGenError
from hybridgen.messages import ProcessInfo, ProcessList

#: What has not come true by then will not.
LIMIT_S = 30.0
LOOK_S = 0.02
#: Counters go to the board ten times a second.
BOARD_S = 0.3
ANSWER_TIMEOUT_S = 2.0


async def came_true(is_so: Callable[[], Awaitable[bool]], limit_s: float = LIMIT_S) -> bool:
    """Wait until ``is_so``; False after the time limit."""
    until_s = time.monotonic() + limit_s
    while not await is_so():
        if time.monotonic() > until_s:
            return False
        await asyncio.sleep(LOOK_S)
    return True


async def is_idle(client: AsyncClient) -> bool:
    """No request runs, waits or holds a slot or a block."""
    try:
        health = await client.health(timeout_s=ANSWER_TIMEOUT_S)
    except HybridGenError:  # the coscheduler may just be on its way back
        return False
    is_free = (
        health.num_free_slots == health.num_slots and health.num_free_blocks == health.num_blocks
    )
    return is_free and health.num_running == health.num_waiting == 0


async def is_at_rest(client: AsyncClient) -> bool:
    """Idle, and every process is ready."""
    if not await is_idle(client):
        return False
    processes = await processes_of(client)
    return bool(processes) and all(process.state == "ready" for process in processes)


async def processes_of(client: AsyncClient) -> list[ProcessInfo]:
    """All processes of the tree but the supervisor; none while that one does not answer."""
    try:
        listing: ProcessList = await client.ps(timeout_s=ANSWER_TIMEOUT_S)
    except HybridGenError:  # it may be stopped, or dead
        return []
    return listing.processes


async def process_of(client: AsyncClient, name: str) -> ProcessInfo | None:
    """The process of that name."""
    return next((one for one in await processes_of(client) if one.name == name), None)


async def counted(client: AsyncClient) -> dict[str, int] | None:
    """What the coscheduler has counted since the start; None when it was replaced meanwhile."""
    await asyncio.sleep(BOARD_S)
    process = await process_of(client, "coscheduler-0")
    return process.counters if process is not None and process.incarnation == 1 else None
