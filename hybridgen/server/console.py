"""The console: a page of static files that ship with the package, held in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from hybridgen.server.exchange import Exchange
from hybridgen.server.refusal import Header, Reply
from hybridgen.server.routing import Route

PAGE_DIR = Path(__file__).with_name("console_page")
INDEX = "index.html"
#: Where everything but the page itself is found.
FILES_PATH = "/console/"

_MEDIA_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
#: Only files of this server, nothing inline, and scripts that cannot turn a text into markup.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: list[Header] = [
    (b"cache-control", b"no-cache"),  # may be kept, but is asked for again: names stay as they are
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
]


class PageFile(NamedTuple):
    """One file as it is sent."""

    media_type: bytes
    etag: bytes
    content: bytes

    @classmethod
    def read(cls, path: Path) -> PageFile:
        """Read ``path``; KeyError when its kind is not one that a page is made of."""
        content = path.read_bytes()
        etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
        return cls(_MEDIA_TYPES[path.suffix], etag, content)

    async def answer(self, exchange: Exchange) -> Reply:
        """The file, or 304 for a client that has it."""
        headers = [*_HEADERS, (b"etag", self.etag)]
        if self._is_known(exchange.header(b"if-none-match")):
            return Reply(304, headers, b"")
        return Reply(200, [(b"content-type", self.media_type), *headers], self.content)

    def _is_known(self, if_none_match: bytes | None) -> bool:
        if if_none_match is None:
            return False
        tags = [tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")]
        return self.etag in tags or tags == [b"*"]


def console_routes(page_dir: Path = PAGE_DIR) -> list[Route]:
    """The page at ``/`` and its files below ``/console/``; open to all, since nothing is secret.

    Paths are those of the files that were there, so that no path can lead elsewhere.
    """
    files = {path.name: PageFile.read(path) for path in sorted(page_dir.iterdir())}
    return [
        Route("GET", "/" if name == INDEX else FILES_PATH + name, file.answer, is_open=True)
        for name, file in files.items()
    ]
