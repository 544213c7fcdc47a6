"""Errors of the tree → answers of HTTP.

The body is the API's: ``{"error": {"message", "type", "param", "code"}}``, always all four.
"""

from __future__ import annotations

import math

import msgspec

from hybridgen.errors import ChannelTimeout, HybridGenError, PeerGone
from hybridgen.server.refusal import JSON_TYPE, Header, Reply

#: When to come back if the error itself does not say.
DEFAULT_RETRY_AFTER_S = 1
#: Errors that mean something more particular to a client than to the processes of the tree.
_STATUS: dict[type[HybridGenError], int] = {PeerGone: 503, ChannelTimeout: 504}
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def http_status(error: HybridGenError) -> int:
    """The status of the answer."""
    for cls, status in _STATUS.items():
        if isinstance(error, cls):
            return status
    return error.http_status


def error_type(status: int) -> str:
    """The API's word for a kind of error."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_object(error: HybridGenError) -> dict[str, str | None]:
    """The four fields."""
    param = error.fields.get("param")
    return {
        "message": _well_formed(str(error)),
        "type": error_type(http_status(error)),
        "param": None if param is None else _well_formed(str(param)),
        "code": error.code,
    }


def error_body(error: HybridGenError) -> Reply:
    """The whole answer; 429 and 503 say when to come back."""
    status = http_status(error)
    headers: list[Header] = [JSON_TYPE]
    if status in {429, 503}:
        headers.append((b"retry-after", b"%d" % _retry_after_s(error)))
    return Reply(status, headers, msgspec.json.encode({"error": error_object(error)}))


def _retry_after_s(error: HybridGenError) -> int:
    given = error.fields.get("retry_after_s")
    is_number = isinstance(given, int | float) and math.isfinite(given) and given > 0
    return math.ceil(float(given or 0)) if is_number else DEFAULT_RETRY_AFTER_S


def _well_formed(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
