"""Attaching a command to a running tree, or to one of its own."""

from __future__ import annotations

import pytest

from hybridgen.errors import ConfigError
from hybridgen.launch.attach import client_for
from hybridgen.launch.config_sources import resolve


def test_a_model_and_a_running_tree_exclude_each_other() -> None:
    resolved = resolve({"model": "mock"}, environment={}, file=None)
    with (
        pytest.raises(ConfigError, match="exclude each other"),
        client_for(resolved, "hybridgen:///x"),
    ):
        pass
