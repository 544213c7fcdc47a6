"""What the http section asks for: whether it is safe, and the address that people use."""

from __future__ import annotations

import shlex

import msgspec

from hybridgen.config import HttpSection
from hybridgen.errors import ConfigError
from hybridgen.server.hosts import AllowedHosts, is_loopback
from hybridgen.server.origins import AllowedOrigins


def check_http(config: HttpSection) -> None:
    """Refuse what nobody can have meant, before anything is started.

    Raises:
        ConfigError: an open door without a key, half of what TLS needs, or names that are none.
    """
    if config.num_gateways <= 0:
        return
    AllowedHosts.of(config)
    AllowedOrigins.of(config)
    is_private = bool(config.uds) or is_loopback(config.host)
    if not (is_private or config.api_key_file or config.insecure):
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


def http_url(config: HttpSection) -> str:
    """Where the gateway answers, as a program on this machine would write it."""
    scheme = "https" if config.tls_certificate else "http"
    if config.uds:
        return f"{scheme}://localhost"  # the name is of no account: the socket's path leads there
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104  # shown
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.port}"


def curl_line(config: HttpSection, model: str) -> str:
    """A command to paste that asks the model something."""
    words = ["curl", *(["--unix-socket", config.uds] if config.uds else [])]
    words.append(f"{http_url(config)}/v1/chat/completions")
    words += ["-H", "Content-Type: application/json"]
    if config.api_key_file:
        words += ["-H", "Authorization: Bearer YOUR-KEY"]
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    return shlex.join([*words, "-d", msgspec.json.encode(body).decode()])
