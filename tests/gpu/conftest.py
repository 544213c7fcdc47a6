"""Tests on a device: the driver keeps descriptors for as long as the process lives."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def module_leaves_nothing() -> None:
    """Not judged here."""


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Not judged here."""
