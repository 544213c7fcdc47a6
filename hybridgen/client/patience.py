"""When a client gives a request up, and with which error."""

from __future__ import annotations

from hybridgen.client.limits import ClientLimits
from hybridgen.client.open_request import OpenRequest
from hybridgen.client.peer import PeerState
from hybridgen.errors import ChannelTimeout, DeadlineExceeded, HybridGenError, PeerGone
from hybridgen.messages import RequestFinished

_REMEDY = "Look whether the server is up: hybridgen ps"


def patience_s(request: OpenRequest, limits: ClientLimits) -> float:
    """How long ``request`` may bring nothing before a verdict is due."""
    finished = request.finished
    if finished is not None and finished.error is not None:
        return limits.failed_text_wait_s
    return limits.answer_timeout_s


def verdict(
    request: OpenRequest, coscheduler: PeerState, limits: ClientLimits, now_s: float
) -> HybridGenError | None:
    """The error to end ``request`` with now, or ``None`` to go on waiting.

    A request is kept as long as its own text comes or the coscheduler says anything at all;
    what the server itself limits (deadlines, stalls) is left to the server.
    """
    limit_s = patience_s(request, limits)
    is_patient = now_s < request.heard_s + limit_s
    if request.finished is not None:
        return None if is_patient else _text_verdict(request, request.finished, limit_s)
    if now_s >= request.deadline_s:
        return DeadlineExceeded(
            "the request's time is up",
            limit=f"{request.order.timeout_s:g} s",
            remedy="Give it a longer timeout_s, or ask for fewer tokens",
        )
    if is_patient:
        return None
    if not request.is_abandoned and now_s < coscheduler.heard_s + limit_s:
        return None
    limit = f"{limit_s:g} s"
    if coscheduler.is_connected:
        return ChannelTimeout("no answer from the server", limit=limit, remedy=_REMEDY)
    return PeerGone("the server cannot be reached", limit=limit, remedy=_REMEDY)


def _text_verdict(
    request: OpenRequest, finished: RequestFinished, limit_s: float
) -> HybridGenError:
    """The final message is there, but not all the text that it counts."""
    if finished.error is not None:
        return finished.error.exception()
    return ChannelTimeout(
        "the end of a request's text did not arrive",
        value=f"{request.cursor.num_tokens} tokens, {request.cursor.num_chars} characters",
        limit=f"{limit_s:g} s without any",
        remedy="Submit the request again",
        num_tokens=finished.num_tokens,
        num_chars=finished.num_chars,
    )
