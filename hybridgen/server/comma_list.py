"""Options that hold several values, separated by commas."""

from __future__ import annotations


def comma_list(text: str) -> list[str]:
    """The values in ``text`` without the spaces around them; empty ones do not count."""
    return [value for part in text.split(",") if (value := part.strip())]
