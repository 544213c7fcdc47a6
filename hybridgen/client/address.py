"""Where a server is, and how a client introduces itself there."""

from __future__ import annotations

import os
from typing import Any

from hybridgen.client.peer import ADMIN, Peer
from hybridgen.ipc.runtime_dir import Endpoints, RuntimeDir, parse_target
from hybridgen.messages import AdminReply, ClientReply, Decoder, TextReply
from hybridgen.request import ID_BYTES

_DECODERS: dict[str, Any] = {
    "coscheduler": Decoder(ClientReply),
    "text": Decoder(TextReply),
    "admin": Decoder(AdminReply),
}


class Address:
    """The sockets of one server, as a client names them.

    Args:
        target: ``hybridgen://…`` or the runtime directory itself.
        prefix: what the identity begins with; the rest is random.

    Raises:
        PeerGone: there is no such directory.
        ConfigError: it cannot be read as an address, or belongs to somebody else.
    """

    def __init__(self, target: str | os.PathLike[str], prefix: bytes = b"c") -> None:
        self._endpoints: Endpoints = RuntimeDir.open(parse_target(os.fspath(target))).endpoints
        # ROUTER sockets keep identities that begin with a zero byte for themselves.
        self.identity = prefix + os.urandom(ID_BYTES - len(prefix))

    def endpoint(self, peer: Peer) -> str:
        """The ZeroMQ endpoint of ``peer``."""
        if peer.kind == "text":
            return self._endpoints.text(peer.number)
        return self._endpoints.admin if peer == ADMIN else self._endpoints.clients

    def decoder(self, peer: Peer) -> Decoder:
        """Decodes what ``peer`` sends."""
        decoder: Decoder = _DECODERS[peer.kind]
        return decoder
