"""The file that API keys come from: never the command line, where every user can read them."""

from __future__ import annotations

from pathlib import Path

from hybridgen.errors import ConfigError, NotPermitted
from hybridgen.server.auth import ApiKeys


def read_keys(path: str) -> ApiKeys | None:
    """The keys in a file, one a line; None when no file is named.

    Raises:
        ConfigError: the file cannot be read, holds no key, or a line is no key.
    """
    if not path:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        kind = NotPermitted if isinstance(error, PermissionError) else ConfigError
        raise kind(
            f"the API key file cannot be read: {error}",
            value=path,
            remedy="Give --api-key-file a text file that this user may read, one key a line",
        ) from None
    return ApiKeys.parse(text)
