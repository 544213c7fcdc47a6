"""``GET /metrics``: the board in the formats that Prometheus reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import parse_qsl

from prometheus_client import exposition
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import CollectorRegistry

from hybridgen.errors import InvalidRequest
from hybridgen.server.board_reading import BoardReader
from hybridgen.server.exchange import Exchange
from hybridgen.server.metric_table import METRICS
from hybridgen.server.refusal import Reply
from hybridgen.server.routing import Route
from hybridgen.server.vllm_metrics import vllm_families
from hybridgen.version import __version__

PATH = "/metrics"
TEXT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
_COMPAT = "compat"
_VLLM = "vllm"
#: Its default would make of ``vllm:x`` a ``vllm_x``; none of our names needs quotes otherwise.
_encode_openmetrics = partial(openmetrics.generate_latest, escaping="allow-utf-8")
#: OpenMetrics ends with it, once.
_END = b"# EOF\n"


class MetricsPage:
    """Reads the board when it is asked, and never else.

    Args:
        reader: of the board.
        model: served name; device: ``cpu`` or ``cuda``.
        refresh: brings this process's own line up to date.
    """

    def __init__(
        self, reader: BoardReader, *, model: str, device: str, refresh: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._model = model
        self._device = device
        self._refresh = refresh

    def route(self, *, is_open: bool) -> Route:
        """Where it is found; ``is_open``: without a key."""
        return Route("GET", PATH, self.serve, is_open=is_open)

    async def serve(self, exchange: Exchange) -> Reply:
        """The page, in the format that the client prefers."""
        is_compatible = _wants_vllm(exchange.query)
        is_openmetrics = b"application/openmetrics-text" in (exchange.header(b"accept") or b"")
        encode = _encode_openmetrics if is_openmetrics else exposition.generate_latest
        parts = []
        for family in self.families(is_compatible=is_compatible):
            parts.append(encode(_OnlyOne(family)).removesuffix(_END))
            await asyncio.sleep(0)  # streams go on between two metrics
        if is_openmetrics:
            parts.append(_END)
        content_type = OPENMETRICS_TYPE if is_openmetrics else TEXT_TYPE
        body = b"".join(parts)
        headers = [(b"content-type", content_type), (b"cache-control", b"no-store")]
        return Reply(200, headers, body)

    def families(self, *, is_compatible: bool = False) -> Iterator[Metric]:
        """Every metric with its samples, all read before the first.

        Args:
            is_compatible: also those that vLLM has, under its names.
        """
        self._refresh()
        reading = self._reader.read()
        yield self._info()
        for spec in METRICS:
            yield spec.family(reading)
        if is_compatible:
            yield from vllm_families(reading, self._model)

    def _info(self) -> Metric:
        info = GaugeMetricFamily(
            "hybridgen_info",
            "Always 1; the labels say what runs.",
            labels=("version", "model", "device"),
        )
        info.add_metric((__version__, self._model, self._device), 1)
        return info


class _OnlyOne(CollectorRegistry):
    """What an encoder takes, with one metric that was read before."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """That metric."""
        return iter((self._family,))


def _wants_vllm(query: str) -> bool:
    """Whether the query asks for vLLM's names.

    Raises:
        InvalidRequest: another key or value.
    """
    fields = parse_qsl(query, keep_blank_values=True)
    for key, value in fields:
        if (key, value) != (_COMPAT, _VLLM):
            shown = ascii(f"{key}={value}"[:100])
            raise InvalidRequest(
                "the query is not understood",
                param=key[:100],
                value=shown,
                limit=f"{_COMPAT}={_VLLM}, or nothing",
                remedy="See docs/metrics.md",
            )
    return bool(fields)
