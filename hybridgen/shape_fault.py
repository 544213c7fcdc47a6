"""What msgspec's validation found wrong in a value, and where."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

_PLACE = re.compile(r" - at (?:`key` in )?`\$([^`]*)`\Z")
_KEY = re.compile(r"Object (contains unknown|missing required) field `(.*)`\Z", re.DOTALL)


class ShapeFault(NamedTuple):
    """The one fault that msgspec tells, its first."""

    problem: str
    """In msgspec's words, without the place. It may quote what the user sent."""
    path: str
    """From the outermost value, such as ``.messages[0].role``; empty for that value itself."""
    unknown_key: str = ""
    """The key in the object at ``path`` that has no meaning there."""
    missing_key: str = ""
    """The key that the object at ``path`` should have."""

    @classmethod
    def of(cls, error: msgspec.ValidationError) -> ShapeFault:
        """Read from the text of the error, the only place where it stands."""
        text = str(error)
        place = _PLACE.search(text)
        problem, path = (text[: place.start()], place[1]) if place else (text, "")
        found = _KEY.match(problem)
        if found is None:
            return cls(problem, path)
        is_unknown = found[1] == "contains unknown"
        return cls(problem, path, **{"unknown_key" if is_unknown else "missing_key": found[2]})
