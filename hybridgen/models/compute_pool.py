"""The threads that compute, counted with the caller."""

from __future__ import annotations

import os

from hybridgen.errors import ConfigError
from hybridgen.models import _native


class ComputePool:
    """A team of native threads; they sleep between calls. One call at a time.

    Args:
        num_threads: threads including the caller; 0 takes every CPU this process may use.

    Raises:
        ConfigError: the system refuses so many threads.
    """

    def __init__(self, num_threads: int = 0) -> None:
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        try:
            self._handle: object | None = _native.create_pool(self.num_threads)
        except OSError as error:
            raise ConfigError(
                f"cannot start the compute threads: {error.strerror}",
                value=self.num_threads,
                remedy="Lower --num-compute-threads or raise the limit of processes (ulimit -u)",
            ) from error

    @property
    def handle(self) -> object:
        """What the native functions take; after ``close`` they raise TypeError or ValueError."""
        return self._handle

    def close(self) -> None:
        """End the threads."""
        self._handle = None
