"""Doorbells: any number of rings is one wake-up, and no ring is lost."""

from __future__ import annotations

import os
import select

from hybridgen.ipc.doorbell import Doorbell


def is_readable(bell: Doorbell) -> bool:
    poll = select.poll()
    poll.register(bell.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_rings_add_up_until_they_are_cleared() -> None:
    bell = Doorbell.create()
    assert not is_readable(bell)
    bell.ring()
    bell.ring()
    assert is_readable(bell)
    assert bell.clear()
    assert not is_readable(bell)
    assert not bell.clear()
    bell.close()
    bell.close()


def test_ringing_never_blocks() -> None:
    bell = Doorbell.create()
    os.eventfd_write(bell.fileno(), 2**64 - 2)
    bell.ring()
    assert is_readable(bell)
    bell.close()
