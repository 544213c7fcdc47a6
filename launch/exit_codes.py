"""Exit codes that are not an error class's own (those stand in errors.py)."""

from __future__ import annotations

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69
EXIT_GIVEN_UP = 70
EXIT_INTERRUPTED = 130
