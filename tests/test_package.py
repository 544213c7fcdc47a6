from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import hybridgen
import hybridgen.client

ROOT = Path(__file__).parent.parent
EXPORTED = [
    "LLM",
    "AsyncClient",
    "ChatMessage",
    "ChatPrompt",
    "Client",
    "Grammar",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "errors",
]


def test_exported_names_are_these() -> None:
    assert hybridgen.__all__ == EXPORTED
    assert dir(hybridgen) == sorted(EXPORTED)


@pytest.mark.parametrize("name", EXPORTED)
def test_every_exported_name_is_there(name: str) -> None:
    assert getattr(hybridgen, name) is not None


@pytest.mark.parametrize("name", hybridgen.client.__all__)
def test_every_name_of_the_client_package_is_there(name: str) -> None:
    assert getattr(hybridgen.client, name).__name__ == name


@pytest.mark.parametrize("package", [hybridgen, hybridgen.client])
def test_another_name_is_an_attribute_error(package: object) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing  # type: ignore[attr-defined]


def test_the_version_is_the_one_of_the_distribution() -> None:
    assert importlib.metadata.version("hybridgen") == hybridgen.__version__


def test_importing_the_package_loads_nothing_of_it() -> None:
    code = "import sys, hybridgen; print([m for m in sys.modules if m.split('.')[0] in heavy])"
    heavy = "heavy = {'hybridgen', 'zmq', 'msgspec', 'numpy', 'torch', 'asyncio'}\n"
    done = subprocess.run(
        [sys.executable, "-c", heavy + code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "['hybridgen.version', 'hybridgen']"
