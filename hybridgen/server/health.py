"""Liveness is an answer; readiness is proved by the tree, at each question anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from hybridgen.errors import Draining, HybridGenError
from hybridgen.messages import HealthReport
from hybridgen.server.backend import Backend
from hybridgen.server.refusal import JSON_TYPE, Header, Refusal, Reply

_RETRY_AFTER: Header = (b"retry-after", b"1")


class Health:
    """Asks the tree; simultaneous askers share one question.

    Args:
        timeout_s: the tree is not ready when it takes longer to answer.
        loaded_share: how far the first start of the tree is, 1 from then on.
    """

    def __init__(
        self, backend: Backend, timeout_s: float, loaded_share: Callable[[], float] = lambda: 1.0
    ) -> None:
        self._backend = backend
        self._timeout_s = timeout_s
        self._loaded_share = loaded_share
        self._asking: asyncio.Task[HealthReport | str] | None = None
        self._has_started = False
        self.is_draining = False

    def live(self) -> Reply:
        """200: this process answers."""
        return _reply(200, {"status": "live"})

    async def ready(self) -> Reply:
        """200 if a request sent now would be served, else 503 and why not."""
        facts = await self._facts()
        return _reply(200 if facts["is_ready"] else 503, facts)

    async def started(self) -> Reply:
        """200 once the tree has been ready, whatever happened since."""
        if self._has_started:
            return _reply(200, {"status": "started"})
        facts = await self._facts()
        return _reply(200 if self._has_started else 503, facts)

    async def check_started(self) -> None:
        """Let no work in before the tree was ready for the first time.

        Raises:
            Refusal: 503 with the tree's own word for its state.
        """
        if self._has_started:
            return
        status = (await self._facts())["status"]
        if not self._has_started:
            raise Refusal(
                503,
                "not_ready",
                f"The server is not ready yet: {status}. Try again.",
                headers=(_RETRY_AFTER,),
            )

    def check_accepting(self) -> None:
        """Let no work in once the server is stopping.

        Raises:
            Draining: 503.
        """
        if self.is_draining:
            raise Draining(
                "the server is stopping and takes no new work",
                remedy="Send it to another server, or again in a moment",
                retry_after_s=1,
            )

    async def _facts(self) -> dict[str, Any]:
        share = self._loaded_share()
        if share < 1.0:
            percent = min(99, round(share * 100))
            return {"status": f"loading {percent} %", "is_ready": False, "loaded_share": share}
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        report = await asyncio.shield(self._asking)
        if isinstance(report, str):
            facts: dict[str, Any] = {"status": report, "is_ready": False}
        else:
            facts = msgspec.to_builtins(report)
            del facts["request_id"], facts["type"]
        if self.is_draining:
            facts |= {"status": "draining", "is_ready": False}
        return facts

    async def _ask(self) -> HealthReport | str:
        try:
            report = await self._backend.health(timeout_s=self._timeout_s)
        except HybridGenError as error:
            return f"not ready: {error.code}"  # this answer needs no key: no paths, no names
        self._has_started = self._has_started or report.is_ready
        return report

    def _asked(self, _: object) -> None:
        self._asking = None


def _reply(status: int, facts: dict[str, Any]) -> Reply:
    headers = [JSON_TYPE, (b"cache-control", b"no-store")]
    if status == 503:
        headers.append(_RETRY_AFTER)
    return Reply(status, headers, msgspec.json.encode(facts))
