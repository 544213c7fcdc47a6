"""The names that a server answers to: a defence against DNS rebinding.

A web page may let its own name lead to 127.0.0.1 and talk to what listens there, which the browser
takes for the page's own server. But it says that name, as Host or :authority.
"""

from __future__ import annotations

import ipaddress
import re

from hybridgen.config import HttpSection
from hybridgen.errors import ConfigError
from hybridgen.server.comma_list import comma_list
from hybridgen.server.refusal import Refusal

ANY = "*"
_USUAL = frozenset({"localhost", "127.0.0.1", "::1"})
_NAME = re.compile(r"[a-z0-9._-]{1,255}|[0-9a-f:.]{2,45}")
_MAX_SHOWN_CHARS = 100


class AllowedHosts:
    """Names of loopback, and further ones.

    Args:
        names: those, in lower case, without ports.
    """

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self._names = _USUAL | names

    @classmethod
    def of(cls, config: HttpSection) -> AllowedHosts | None:
        """As configured; None lets any name pass.

        That is so without ``allowed_hosts`` where a page could do nothing (a key is asked for, a
        unix socket), and where nobody knows under which names others reach the server.

        Raises:
            ConfigError: one of ``allowed_hosts`` is no name.
        """
        names = frozenset(map(_checked, comma_list(config.allowed_hosts)))
        is_exposed = not (config.uds or config.api_key_file) and is_loopback(config.host)
        if ANY in names or not (names or is_exposed):
            return None
        return cls(names | {config.host.lower()})

    def check(self, host: bytes | None) -> None:
        """Judge the value of a Host header. Every browser sends one, and none sends it empty.

        HTTP/1.0 needs none; the server library then says it is empty.

        Raises:
            Refusal: 403.
        """
        if not host:
            return
        name = _name(host.decode("latin-1"))
        if name in self._names or name.endswith(".localhost") or is_loopback(name):
            return
        shown = ascii(name[:_MAX_SHOWN_CHARS])
        raise Refusal(
            403,
            "host_not_allowed",
            f"This server does not answer to the name {shown}. Use localhost, or start it with "
            "--allowed-hosts and that name.",
            param="host",
        )


def is_loopback(host: str) -> bool:
    """Only this machine reaches ``host``; a name other than localhost may lead anywhere."""
    if host in _USUAL:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """Without port, brackets and the dot of the root."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def _checked(name: str) -> str:
    if name == ANY or _NAME.fullmatch(name.lower()):
        return name.lower()
    raise ConfigError(
        "one of allowed_hosts is no name of a host",
        value=name,
        remedy="Give names or addresses without scheme and port, separated by commas, or *",
    )
