"""Texts of files that nobody vouches for, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with its control characters spelled out: they could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
