"""What clients wait for: the time to their first token, and between tokens.

Taken where text is handed to a client's socket, so it counts everything in between: queue, prompt,
steps, sampling, text. One call per piece of text, two plain stores each.
"""

from __future__ import annotations

import logging

from hybridgen.ipc.board import BoardLine
from hybridgen.log import VolumeLimit
from hybridgen.messages import TextDelta
from hybridgen.text.delivery import Delivery

_log = logging.getLogger("hybridgen.tokens")
#: Lines about single pieces, at level debug: more would be a load of its own.
MAX_LINES_PER_S = 200


class DeliveryMeter:
    """Counts on the board what was sent; with level debug also says it, piece by piece."""

    def __init__(self, line: BoardLine) -> None:
        self._line = line
        histograms = line.histograms()
        self._first = histograms["ttft"]
        self._between = histograms["inter_token"]
        self._is_verbose = _log.isEnabledFor(logging.DEBUG)
        if self._is_verbose:
            _log.filters[:] = [VolumeLimit(MAX_LINES_PER_S)]

    def sent(self, sent: list[tuple[Delivery, TextDelta]], now_s: float) -> None:
        """One frame was taken by a socket; before ``mark_sent``.

        A piece of several tokens shares the time since the last piece among them.
        """
        num_tokens = 0
        for text, delta in sent:
            num_new = len(delta.token_ids)
            if not num_new:
                continue
            num_tokens += num_new
            if text.last_sent_s is not None:
                self._between.observe_s((now_s - text.last_sent_s) / num_new, num_new)
            elif delta.token_offset == 0:  # else a predecessor has sent the first
                self._first.observe_s(now_s - text.arrival_s)
            if self._is_verbose:
                self._say(text, delta, now_s)
        self._line.add("sent_tokens", num_tokens)
        self._line.add("deltas", len(sent))
        self._line.add("frames", 1)

    def _say(self, text: Delivery, delta: TextDelta, now_s: float) -> None:
        request_id = text.request_id.hex()
        _log.debug(
            "request %s: tokens %d to %d sent %d µs after it arrived",
            request_id,
            delta.token_offset,
            delta.token_offset + len(delta.token_ids) - 1,
            round((now_s - text.arrival_s) * 1e6),
            extra={"request_id": request_id},
        )
