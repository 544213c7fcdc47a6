"""Words of shared memory that change under a reader: what a stray write of anybody could do."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Sequence

from hybridgen.ipc.header import Memory

_WORDS = (0, 1, 2, 63, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def damage(rng: random.Random, buf: Memory) -> None:
    """Change one word: one bit of it, or to a value that breaks things."""
    offset = 8 * rng.randrange(len(buf) // 8)
    word = struct.unpack_from("=Q", buf, offset)[0]
    choice = rng.random()
    if choice < 0.4:
        word ^= 1 << rng.randrange(64)
    elif choice < 0.8:
        word = rng.choice(_WORDS)
    else:
        word = rng.getrandbits(64)
    struct.pack_into("=Q", buf, offset, word)


class Damager:
    """Damages several buffers from a thread of its own, while in the context.

    Args:
        seed: of the course.
        regions: what may be damaged, one as likely as the other.
    """

    def __init__(self, seed: int, regions: Sequence[Memory]) -> None:
        self._rng = random.Random(seed)  # a test's course
        self._regions = regions
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_over.is_set():
            damage(self._rng, self._rng.choice(self._regions))

    def __enter__(self) -> Damager:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_over.set()
        self._thread.join()
