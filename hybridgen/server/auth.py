"""API keys: who may ask for anything but the server's health."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from hybridgen.errors import ConfigError
from hybridgen.server.refusal import Refusal

MAX_KEY_CHARS = 512
_SCHEME = b"bearer"


class ApiKeys:
    """The digests of the accepted keys; the keys themselves are not kept, so nothing prints them.

    Args:
        keys: at least one; visible ASCII, at most 512 characters each.

    Raises:
        ConfigError: no key, or one that no client could send.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        digests = [_digest(_checked(key, number).encode()) for number, key in enumerate(keys, 1)]
        if not digests:
            raise ConfigError("there is no API key", remedy="Give at least one, one a line")
        self._digests = tuple(digests)

    @classmethod
    def parse(cls, text: str) -> ApiKeys:
        """The keys in a text: one a line; empty lines and lines beginning with # are left out.

        Raises:
            ConfigError: no key is left, or a line is no key.
        """
        lines = (line.strip() for line in text.splitlines())
        return cls(line for line in lines if line and not line.startswith("#"))

    def accepts(self, key: bytes) -> bool:
        """Whether ``key`` is one of them; takes as long whichever it is, or none."""
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)

    def check(self, authorization: bytes | None) -> None:
        """Judge the value of an Authorization header.

        Raises:
            Refusal: 401, without a hint at what was sent.
        """
        if authorization is None:
            raise _refused("This server wants an API key. Send it as 'Authorization: Bearer KEY'.")
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != _SCHEME or not self.accepts(key.strip(b" ")):
            raise _refused("The API key is not accepted. Send it as 'Authorization: Bearer KEY'.")


def _checked(key: str, number: int) -> str:
    if 0 < len(key) <= MAX_KEY_CHARS and key.isascii() and all("!" <= c <= "~" for c in key):
        return key
    raise ConfigError(
        f"API key number {number} is malformed",  # never the key itself
        limit=f"1 to {MAX_KEY_CHARS} visible ASCII characters without spaces",
        remedy="Use for example the output of `openssl rand -hex 32`",
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refused(message: str) -> Refusal:
    return Refusal(
        401,
        "invalid_api_key",
        message,
        param="authorization",
        headers=((b"www-authenticate", b"Bearer"),),
    )
