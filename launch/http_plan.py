"""What the http section asks for: whether it is safe, and the address that people use."""

from __future__ import annotations

import ipaddress
import shlex

import msgspec

from hybridgen.config import HttpSection
from hybridgen.errors import ConfigError


def check_http(config: HttpSection) -> None:
    """Refuse what nobody can have meant, before anything is started.

    Raises:
        ConfigError: an open door without a key, or half of what TLS needs.
    """
    if config.num_gateways <= 0:
        return
    if not (is_loopback(config.host) or config.api_key_file or config.insecure):
        raise ConfigError(
            "other machines could use this server without a key",
            value=f"host {config.host}",
            limit="127.0.0.1, ::1 or localhost without a key",
            remedy="Give --api-key-file, or --insecure if that is what you want",
        )
    if bool(config.tls_certificate) != bool(config.tls_key):
        raise ConfigError(
            "TLS needs a certificate and its key",
            value=f"only {config.tls_certificate or config.tls_key}",
            remedy="Give both --tls-certificate and --tls-key, or neither",
        )


def is_loopback(host: str) -> bool:
    """Only this machine reaches ``host``; a name other than localhost may lead anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def http_url(config: HttpSection) -> str:
    """Where the gateway answers, as a program on this machine would write it."""
    scheme = "https" if config.tls_certificate else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104  # shown
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.port}"


def curl_line(config: HttpSection, model: str) -> str:
    """A command to paste that asks the model something."""
    words = ["curl", f"{http_url(config)}/v1/chat/completions"]
    words += ["-H", "Content-Type: application/json"]
    if config.api_key_file:
        words += ["-H", "Authorization: Bearer YOUR-KEY"]
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    return shlex.join([*words, "-d", msgspec.json.encode(body).decode()])
