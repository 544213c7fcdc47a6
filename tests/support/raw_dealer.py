"""A client that says what no client of ours would say."""

from __future__ import annotations

from typing import Any

import msgspec

from hybridgen.ipc.channel import Dealer, Poller
from hybridgen.ipc.runtime_dir import Endpoints, parse_uri
from hybridgen.messages import ClientReply, Decoder

ANSWER_TIMEOUT_S = 5.0


def send_raw_order(uri: str, order: dict[str, Any]) -> Any:
    """Send ``order`` as it stands to the coscheduler; the first reply."""
    dealer = Dealer(Endpoints(parse_uri(uri)).clients, b"raw-client-00000", Decoder(ClientReply))
    poller = Poller()
    poller.add(dealer)
    try:
        dealer.send(msgspec.Raw(msgspec.msgpack.encode(order)))
        if not poller.poll(ANSWER_TIMEOUT_S):
            raise AssertionError("no answer")
        return dealer.receive()
    finally:
        dealer.close()
