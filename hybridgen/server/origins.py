"""Cross-origin requests (CORS): which web pages of other servers may read the answers.

Without ``allowed_origins`` none may, since no answer has an Access-Control header; and what a page
can send unread, a POST that is no JSON, is refused.
"""

from __future__ import annotations

import re

from hybridgen.config import HttpSection
from hybridgen.errors import ConfigError
from hybridgen.server.comma_list import comma_list
from hybridgen.server.exchange import Exchange
from hybridgen.server.refusal import Header, Reply

ANY = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")
_METHODS: Header = (b"access-control-allow-methods", b"GET, HEAD, POST")
_MAX_AGE: Header = (b"access-control-max-age", b"600")
_EXPOSED: Header = (
    b"access-control-expose-headers",
    b"x-request-id, retry-after, x-hybridgen-ignored",
)


class AllowedOrigins:
    """Origins whose pages may read.

    Args:
        origins: as browsers write them, or ``*`` for all.
    """

    def __init__(self, origins: frozenset[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._is_any = ANY in origins

    @classmethod
    def of(cls, config: HttpSection) -> AllowedOrigins | None:
        """As configured; None where there are none.

        Raises:
            ConfigError: one of ``allowed_origins`` is no origin.
        """
        origins = frozenset(map(_checked, comma_list(config.allowed_origins)))
        return cls(origins) if origins else None

    def mark(self, exchange: Exchange) -> None:
        """Add to the answer's headers that its page may read it, if it may."""
        origin = self._allowed_origin(exchange)
        if origin is None:
            return
        shown = ANY.encode() if self._is_any else origin
        exchange.extra_headers += [(b"access-control-allow-origin", shown), (b"vary", b"origin")]
        if not _is_preflight(exchange):
            exchange.extra_headers.append(_EXPOSED)

    def preflight(self, exchange: Exchange) -> Reply | None:
        """The answer to a browser that asks what an allowed page may send; None for all else."""
        if self._allowed_origin(exchange) is None or not _is_preflight(exchange):
            return None
        wanted = exchange.header(b"access-control-request-headers") or b""
        allowed = [(b"access-control-allow-headers", wanted)] if wanted else []
        return Reply(204, [_METHODS, _MAX_AGE, *allowed], b"")

    def _allowed_origin(self, exchange: Exchange) -> bytes | None:
        origin = exchange.header(b"origin")
        return origin if self._is_any or origin in self._origins else None


def _is_preflight(exchange: Exchange) -> bool:
    is_question = exchange.header(b"access-control-request-method") is not None
    return exchange.method == "OPTIONS" and is_question


def _checked(origin: str) -> str:
    if origin == ANY or _ORIGIN.fullmatch(origin):
        return origin
    raise ConfigError(
        "one of allowed_origins is no origin",
        value=origin,
        remedy="Give https://app.example.com, say, without a path; several with commas; or *",
    )
