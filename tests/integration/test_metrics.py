"""`/metrics` of a real tree: counters are what its clients saw, logs say the same."""

from __future__ import annotations

import gzip
import http.server
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hybridgen import SamplingParams
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.http_caller import events, get, post
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT = "/v1/chat/completions"
needs_otel = pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry") is None, reason="hybridgen[otel] is not installed"
)
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


class Door:
    """A tree and the port of its gateway."""

    def __init__(self, tree: RunningTree, port: int) -> None:
        self.tree = tree
        self.port = port

    def value(self, name: str, **labels: str) -> float:
        return metric(self.port, name, **labels)


def metric(port: int, name: str, **labels: str) -> float:
    text = get(port, "/metrics").body.decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"hybridgen_{name}" and labels.items() <= sample.labels.items()
    )


def body(**options: Any) -> dict[str, Any]:
    fixed = {"seed": 7, "max_tokens": 20, "min_tokens": 20}
    return {"model": "mock", "messages": [{"role": "user", "content": "Hello"}], **fixed, **options}


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    port = free_port()
    with running_tree(model="mock", mock_step_us=500, num_gateways=1, port=port) as tree:
        yield Door(tree, port)


def test_counters_are_what_clients_saw(door: Door) -> None:
    usages = [post(door.port, CHAT, body()).json()["usage"] for _ in range(4)]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    usages += [list(events(door.port, CHAT, body(**options)))[-2]["usage"] for _ in range(3)]
    num_prompt = sum(usage["prompt_tokens"] for usage in usages)
    num_generated = sum(usage["completion_tokens"] for usage in usages)
    own = door.tree.client.generate("abc", SamplingParams(max_tokens=5, min_tokens=5))
    num_prompt += own.num_prompt_tokens
    num_generated += len(own.token_ids)
    eventually(lambda: door.value("requests_finished_total", reason="length") == 8, 5.0)
    assert door.value("requests_accepted_total") == 8
    assert door.value("prompt_tokens_total") == num_prompt
    assert door.value("generated_tokens_total") == num_generated
    assert door.value("request_generated_tokens_sum") == num_generated
    for name in ("time_to_first_token", "e2e_request_latency", "request_decode_time"):
        assert door.value(f"{name}_seconds_count") == 8, name
    assert 0 < door.value("inter_token_latency_seconds_count") <= num_generated - 8
    assert door.value("replayed_tokens_total") == 0


def test_a_client_that_leaves_is_an_abort(door: Door) -> None:
    before = door.value("requests_aborted_total")
    stream = events(door.port, CHAT, body(stream=True, max_tokens=1800, min_tokens=1800))
    next(stream)
    eventually(lambda: door.value("requests_running") == 1, 2.0)
    stream.close()
    eventually(lambda: door.value("requests_aborted_total") == before + 1, 5.0)
    eventually(lambda: door.value("requests_running") == 0, 5.0)


def test_a_killed_device_process_shows_and_its_requests_are_replayed(door: Door) -> None:
    stream = door.tree.client.submit("Hi", SamplingParams(max_tokens=800, min_tokens=800))
    next(stream)
    pid = door.tree.kill("gpu-0")
    door.tree.wait_replaced("gpu-0", pid)
    assert len(stream.result().token_ids) == 800
    assert door.value("process_restarts_total", process="gpu-0") == 1
    assert door.value("process_up", process="gpu-0") == 1
    eventually(lambda: door.value("replayed_tokens_total") > 0, 5.0)


def test_metrics_can_be_left_out() -> None:
    port = free_port()
    with running_tree(model="mock", num_gateways=1, port=port, enable_metrics=False):
        assert get(port, "/metrics").status == 404


def test_json_logs_tell_each_request_with_its_trace_and_nothing_else_is_printed() -> None:
    port = free_port()
    command = (sys.executable, "-P", "-m", "hybridgen", "serve", "mock", "-p", str(port))
    with subprocess.Popen(
        [*command, "--log-format", "json", "--log-level", "debug"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            eventually(lambda: is_ready(port), 30.0)
            request = urllib.request.Request(  # a tree of our own
                f"http://127.0.0.1:{port}{CHAT}",
                json.dumps(body()).encode(),
                {"content-type": "application/json", "traceparent": TRACEPARENT},
            )
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                assert answer.headers["traceparent"] == TRACEPARENT
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert {"ts", "level", "role", "process", "pid", "message"} <= set.intersection(
        *map(set, lines)
    )
    (done,) = [line for line in lines if "20 tokens" in line["message"]]
    assert (done["role"], done["trace_id"]) == ("coscheduler", TRACE_ID)
    pieces = [line for line in lines if "sent" in line["message"] and "µs" in line["message"]]
    assert {line["request_id"] for line in pieces} == {done["request_id"]}


@needs_otel
def test_spans_reach_a_collector_below_the_clients_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with running_tree(model="mock") as tree:
            stream = tree.client.submit("Hi", SamplingParams(max_tokens=3), traceparent=TRACEPARENT)
            stream.result()
        spans = collector.spans()  # a tree that stops sends what it has
    whole = spans["hybridgen.request"]
    assert whole.trace_id.hex() == TRACE_ID
    assert whole.parent_span_id.hex() == TRACEPARENT.split("-")[2]
    stages = {"queue", "tokenize", "prefill", "decode"}
    assert set(spans) == {f"hybridgen.{name}" for name in {"request", *stages}}
    for stage in stages:
        span = spans[f"hybridgen.{stage}"]
        assert span.parent_span_id == whole.span_id
        assert whole.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= whole.end_time_unix_nano


class Collector:
    """Takes what is exported by OTLP over HTTP."""

    def __init__(self) -> None:
        bodies = self._bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> dict[str, Any]:
        """By name."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        found: dict[str, Any] = {}
        for body in self._bodies:
            content = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
            for resource in ExportTraceServiceRequest.FromString(content).resource_spans:
                names = {a.key: a.value.string_value for a in resource.resource.attributes}
                assert names["service.name"] == "hybridgen"
                found |= {s.name: s for scope in resource.scope_spans for s in scope.spans}
        return found


def is_ready(port: int) -> bool:
    try:
        return get(port, "/health/ready").status == 200
    except OSError:
        return False
