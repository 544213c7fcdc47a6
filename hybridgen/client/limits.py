"""The time limits of a client."""

from __future__ import annotations

import msgspec

#: For the supervisor, who answers at once or not at all.
ADMIN_TIMEOUT_S = 5.0


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a client waits, and how often it asks again. All in seconds."""

    answer_timeout_s: float = 30.0
    """Open requests end with PeerGone or ChannelTimeout when the server is silent this long."""
    resend_s: float = 5.0
    """An order without an answer is repeated this often (repeats are harmless)."""
    silence_s: float = 10.0
    """A stream without text for this long is subscribed again from its offsets."""
    text_retry_s: float = 0.01
    """First pause before asking again for text that is missing; doubles each time."""
    max_text_retry_s: float = 0.25
    """Longest such pause."""
    failed_text_wait_s: float = 2.0
    """How long the text of a request that failed is waited for before its error is raised."""
    deadline_grace_s: float = 0.5
    """How long after a request's own deadline the server may take to say so."""
    close_timeout_s: float = 1.0
    """How long closing waits for the server to have seen the last cancel and acknowledgement."""
