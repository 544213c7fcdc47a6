"""Who is told about the start of a tree."""

from __future__ import annotations

from typing import Protocol

from hybridgen.messages import LoadProgress


class TreeListener(Protocol):
    """A terminal, a parent process."""

    def child_progress(self, name: str, fact: LoadProgress) -> None:
        """A starting child reports how far it is."""

    def child_ready(self, name: str, num_ready: int, num_total: int) -> None:
        """A child reports ready for the first time."""

    def tree_ready(self) -> None:
        """All children are ready."""
