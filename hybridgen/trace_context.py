"""W3C trace context: which trace of the client a request belongs to.

``traceparent`` is ``version-trace_id-parent_id-flags`` in lower-case hex
(https://www.w3.org/TR/trace-context/). One that is malformed is treated as absent, as the standard
has it: a broken header of some proxy must not fail a request.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEADER = b"traceparent"
_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?")
#: Versions to come may be longer; nobody needs one that is longer than this.
_MAX_CHARS = 256


class TraceContext(NamedTuple):
    """A parent span somewhere else."""

    trace_id: str
    """32 hex digits."""
    parent_id: str
    """16 hex digits: the client's span."""
    flags: int
    """Bit 0: the client records this trace."""

    @classmethod
    def parse(cls, value: str) -> TraceContext | None:
        """The context in a traceparent, or ``None`` for none and for a malformed one."""
        match = _SHAPE.fullmatch(value) if 0 < len(value) <= _MAX_CHARS else None
        if match is None:
            return None
        version, trace_id, parent_id, flags, rest = match.groups()
        is_known_shape = version != "ff" and not (version == "00" and rest)
        if not is_known_shape or not int(trace_id, 16) or not int(parent_id, 16):
            return None
        return cls(trace_id, parent_id, int(flags, 16))

    def __str__(self) -> str:
        """As a traceparent of version 00."""
        return f"00-{self.trace_id}-{self.parent_id}-{self.flags:02x}"
