from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.free_port import free_port
from tests.support.running_tree import running_tree

KEY = "secret-key"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a tree that asks for ``KEY``, runs 8 requests at once and lets 2 more wait."""
    keys: Path = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY)
    number = free_port()
    limits = {"max_num_seqs": 8, "backlog_limit": 2, "mock_step_us": 1000}
    options = {"model": "mock", "num_gateways": 1, "port": number, "api_key_file": str(keys)}
    with running_tree(**options, **limits):
        yield number
