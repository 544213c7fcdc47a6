"""Exit codes that are not an error class's own (those stand in errors.py)."""

from __future__ import annotations

EXIT_OK = 0
EXIT_UNAVAILABLE = 69
EXIT_OUTPUT = 74
EXIT_INTERRUPTED = 130
