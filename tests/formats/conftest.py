"""A tiny model in both layouts, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.errors import ConfigError
from hybridgen.formats.locate import locate
from tools.make_tiny_model import TinyModel, make_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1)


@pytest.fixture(scope="session")
def demo_path() -> Path:
    try:
        path = locate("demo")
    except ConfigError as error:
        pytest.skip(str(error))
    assert isinstance(path, Path)
    return path
