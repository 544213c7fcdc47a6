"""Paths and methods: which handler a request goes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from hybridgen.server.exchange import Exchange
from hybridgen.server.refusal import Refusal, Reply

#: Answers with a reply, or has sent everything itself and returns ``None``.
Handler = Callable[[Exchange], Awaitable[Reply | None]]

_MAX_SHOWN_CHARS = 100


class Route(NamedTuple):
    """One method on one path. A path that ends in ``/`` stands for all names below it."""

    method: str
    path: str
    handler: Handler
    is_open: bool = False  # needs no key; everything else does
    is_work: bool = False  # refused while the server drains


class Router:
    """Finds routes. Paths are compared as they were decoded, and only whole."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            self._by_path.setdefault(route.path, {})[route.method] = route

    def find(self, method: str, path: str) -> Route | Refusal:
        """The route, or the refusal to answer with once the client was let in."""
        methods = self._by_path.get(path) or self._by_path.get(_folder(path))
        if methods is None:
            return Refusal(
                404, "not_found", f"There is nothing at {_shown(path)}. See the documentation."
            )
        route = methods.get("GET" if method == "HEAD" else method)
        if route is not None:
            return route
        allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
        return Refusal(
            405,
            "method_not_allowed",
            f"{_shown(method)} does not work on {_shown(path)}; use {allowed}.",
            headers=((b"allow", allowed.encode()),),
        )


def _folder(path: str) -> str:
    """``/v1/models/`` for each path below it; names may hold slashes."""
    parts = path.split("/", 3)
    return "/".join(parts[:3]) + "/" if len(parts) == 4 and parts[3] else ""


def _shown(text: str) -> str:
    shown = text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"
    return ascii(shown)
