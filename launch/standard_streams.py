"""Standard output and error, fit to be written to, whatever the caller did with them."""

from __future__ import annotations

import io
import os
import sys


def prepare() -> None:
    """Give closed streams a place to go, and no text a reason to fail.

    A stream that the caller closed is None in Python, and its descriptor would go to the next file
    that is opened. A terminal that knows ASCII only shows ``?`` for what it cannot show.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open to the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def silence() -> None:
    """Standard output takes nothing more: what is still buffered for it must not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
