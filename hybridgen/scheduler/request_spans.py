"""Requests as OpenTelemetry spans: one each, and one for every stage it went through.

The package is optional (``hybridgen[otel]``) and imported only when spans are exported. Where they
go, and how many, say the standard environment variables (``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME``, …). Spans are made after a request has ended, sent
by a thread of the SDK, and dropped rather than waited for when the collector is slow.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from hybridgen.errors import ConfigError
from hybridgen.scheduler.request_record import FinishedRequest

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

Wish = Literal["auto", "true", "false"]

#: What may still be on its way when the process ends gets this long.
CLOSE_S = 1.0
_PROTOCOL = "http/protobuf"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def wants_spans(wish: Wish, environment: Mapping[str, str]) -> bool:
    """Whether spans are to be exported.

    Args:
        wish: the option ``enable_tracing``; ``auto`` follows the environment, as far as the
            package is there.
        environment: of the process.

    Raises:
        ConfigError: they are asked for and cannot be made.
    """
    if not _is_asked(wish, environment):
        return False
    _check_exporter(environment.get("OTEL_TRACES_EXPORTER") or "otlp", environment)
    if not _is_installed() and wish == "true":
        raise ConfigError(
            "spans are asked for and OpenTelemetry is not installed",
            value="enable_tracing true",
            remedy="Run pip install 'hybridgen[otel]', or leave out --enable-tracing",
        )
    return _is_installed()


def check_spans(wish: Wish, environment: Mapping[str, str]) -> None:
    """Look at the same before anything is started, once for the tree.

    Raises:
        ConfigError: as ``wants_spans``.
    """
    if _is_asked(wish, environment) and not wants_spans(wish, environment):
        logger.warning("OTEL_* asks for spans; none are made: pip install 'hybridgen[otel]'")


def _is_asked(wish: Wish, environment: Mapping[str, str]) -> bool:
    if wish == "false" or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    return wish == "true" or _is_configured(exporter, environment)


def _is_configured(exporter: str, environment: Mapping[str, str]) -> bool:
    if exporter:
        return exporter != "none"
    return any(environment.get(name) for name in _ENDPOINTS)


def _check_exporter(exporter: str, environment: Mapping[str, str]) -> None:
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _PROTOCOL)
    for name, value, limit in (
        ("OTEL_TRACES_EXPORTER", exporter, "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, _PROTOCOL),
    ):
        if value != limit:
            raise ConfigError(
                f"{name} asks for what is not served",
                value=value,
                limit=limit,
                remedy=f"Set it to the limit, or give --enable-tracing false, or unset {name}",
            )


def _is_installed() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)
    except ModuleNotFoundError:  # not even the package around it
        return False


class RequestSpans:
    """Makes spans of requests that have ended.

    Args:
        provider: where they go.
        model: name of the served model.
        unix_offset_ns: ns since 1970 minus CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        provider: TracerProvider,
        model: str,
        unix_offset_ns: Callable[[], int] = lambda: time.time_ns() - time.monotonic_ns(),
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("hybridgen")
        self._model = model
        self._unix_offset_ns = unix_offset_ns

    @classmethod
    def to_collector(cls, model: str) -> RequestSpans:
        """Exported by OTLP, as the environment says."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # an optional package
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        resource = Resource.create()
        if str(resource.attributes.get("service.name")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "hybridgen"}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider, model)

    def record(self, request: FinishedRequest) -> None:
        """Make the spans of ``request``."""
        from opentelemetry import trace  # noqa: PLC0415  # an optional package

        offset_ns = self._unix_offset_ns()
        span = self._tracer.start_span(
            "hybridgen.request",
            context=_parent(request),
            kind=trace.SpanKind.SERVER,
            start_time=_ns(request.times.arrival_s) + offset_ns,
            attributes={
                "gen_ai.request.model": self._model,
                "gen_ai.usage.input_tokens": request.num_prompt_tokens,
                "gen_ai.usage.output_tokens": request.num_tokens,
                "gen_ai.response.finish_reasons": (request.finish_reason,),
                "hybridgen.request_id": request.request_id.hex(),
                "hybridgen.num_preemptions": request.num_preemptions,
            },
        )
        if request.error_code:
            span.set_status(trace.StatusCode.ERROR, request.error_code)
        within = trace.set_span_in_context(span)
        for stage, pairs in request.times.stages().items():
            for begin_s, end_s in pairs:
                child = self._tracer.start_span(
                    f"hybridgen.{stage}", context=within, start_time=_ns(begin_s) + offset_ns
                )
                child.end(_ns(end_s) + offset_ns)
        span.end(_ns(request.times.final_s) + offset_ns)

    def close(self) -> None:
        """Send what waits, within ``CLOSE_S``."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _parent(request: FinishedRequest) -> Context | None:
    from opentelemetry import trace  # noqa: PLC0415  # an optional package

    if request.trace is None:
        return None
    client = trace.SpanContext(
        trace_id=int(request.trace.trace_id, 16),
        span_id=int(request.trace.parent_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(request.trace.flags & trace.TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(client))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
