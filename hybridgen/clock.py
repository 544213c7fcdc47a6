"""Time, injected wherever logic needs it, so that tests never sleep."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Returns seconds on a clock that never jumps. Shared by all processes of one machine
#: (CLOCK_MONOTONIC), so stamps written into shared memory can be compared by anyone.
Clock = Callable[[], float]

monotonic_s: Clock = time.monotonic
monotonic_ns: Callable[[], int] = time.monotonic_ns
