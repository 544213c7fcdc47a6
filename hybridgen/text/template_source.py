"""Which chat template a model uses: its own, or one that replaces it."""

from __future__ import annotations

from pathlib import Path

from hybridgen.errors import ConfigError
from hybridgen.formats.tokenizer_spec import TokenizerSpec

MAX_SOURCE_CHARS = 2**20


def template_source(spec: TokenizerSpec, template_file: str = "") -> str | None:
    """The text of the chat template; the one in ``template_file`` replaces the model's.

    Raises:
        ConfigError: the file cannot be read.
    """
    return _read_template(Path(template_file)) if template_file else spec.chat_template


def _read_template(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4 * MAX_SOURCE_CHARS + 1).decode()
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: {error.reason}"
    raise ConfigError(
        f"the chat template cannot be read: {reason}",
        value=str(path),
        remedy="Name a text file with a Jinja template",
    )
