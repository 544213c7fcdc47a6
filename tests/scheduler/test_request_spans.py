"""Spans: made of what a finished request knows, asked for by the environment, never in the way."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

from hybridgen.errors import ConfigError
from hybridgen.scheduler import request_spans
from hybridgen.scheduler.request_record import FinishedRequest
from hybridgen.scheduler.request_spans import RequestSpans, check_spans, wants_spans
from hybridgen.scheduler.request_times import RequestTimes
from hybridgen.trace_context import TraceContext

TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
TIMES = RequestTimes(10.0, 11.0, 13.0, 16.0, 20.0, 25.0)
DONE = FinishedRequest(
    request_id=b"\xab" * 16,
    slot=0,
    finish_reason="length",
    error_code="",
    num_prompt_tokens=3,
    num_tokens=50,
    queue_s=6.0,
    total_s=15.0,
    num_preemptions=0,
    deaths=0,
    times=TIMES,
    trace=TRACE,
)
OFFSET_NS = 1_800_000_000 * 10**9
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
needs_otel = pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry") is None, reason="hybridgen[otel] is not installed"
)


def spans_of(request: FinishedRequest) -> dict[str, Any]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = RequestSpans(provider, "demo", lambda: OFFSET_NS)
    spans.record(request)
    spans.close()
    return {span.name: span for span in exporter.get_finished_spans()}


@needs_otel
def test_a_request_is_a_span_below_its_clients_with_one_for_each_stage() -> None:
    spans = spans_of(DONE)
    names = {"request", "queue", "tokenize", "prefill", "decode"}
    assert set(spans) == {f"hybridgen.{name}" for name in names}
    whole = spans["hybridgen.request"]
    assert f"{whole.context.trace_id:032x}" == TRACE.trace_id
    assert f"{whole.parent.span_id:016x}" == TRACE.parent_id
    assert whole.attributes["gen_ai.usage.output_tokens"] == 50
    assert whole.attributes["gen_ai.request.model"] == "demo"
    assert (whole.start_time - OFFSET_NS, whole.end_time - OFFSET_NS) == (10 * 10**9, 25 * 10**9)
    for stage in names - {"request"}:
        assert spans[f"hybridgen.{stage}"].parent.span_id == whole.context.span_id
    prefill = spans["hybridgen.prefill"]
    assert (prefill.end_time - prefill.start_time) == 4 * 10**9


@needs_otel
def test_a_request_without_a_trace_begins_one_and_an_error_is_a_status() -> None:
    failed = spans_of(DONE._replace(trace=None, error_code="poison_request"))
    whole = failed["hybridgen.request"]
    assert whole.parent is None
    assert whole.status.description == "poison_request"
    assert not whole.status.is_ok


@needs_otel
def test_a_trace_that_the_client_does_not_record_makes_no_spans() -> None:
    assert spans_of(DONE._replace(trace=TRACE._replace(flags=0))) == {}


@needs_otel
def test_a_collector_that_is_not_there_delays_no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENDPOINT.items():
        monkeypatch.setenv(name, value)
    spans = RequestSpans.to_collector("demo")
    spans.record(DONE)
    started_s = time.monotonic()
    spans.close()
    assert time.monotonic() - started_s < request_spans.CLOSE_S + 5.0


@needs_otel
@pytest.mark.parametrize(
    ("wish", "environment", "is_wanted"),
    [
        ("auto", {}, False),
        ("auto", ENDPOINT, True),
        ("auto", {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ("auto", {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ("auto", {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ("true", {}, True),
        ("false", ENDPOINT, False),
    ],
)
def test_the_environment_decides_unless_an_option_does(
    wish: Any, environment: Mapping[str, str], is_wanted: bool
) -> None:
    assert wants_spans(wish, environment) is is_wanted


@pytest.mark.parametrize(
    "environment",
    [
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"},
        {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(environment: Mapping[str, str]) -> None:
    with pytest.raises(ConfigError, match="OTEL_"):
        wants_spans("auto", environment)


def test_without_the_package_a_wish_is_refused_and_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide_otel(monkeypatch)
    with pytest.raises(ConfigError, match=r"hybridgen\[otel\]"):
        check_spans("true", {})


def test_without_the_package_an_environment_is_only_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hide_otel(monkeypatch)
    check_spans("auto", ENDPOINT)
    assert "hybridgen[otel]" in caplog.text
    assert not wants_spans("auto", ENDPOINT)


def hide_otel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
