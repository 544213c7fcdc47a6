"""`/metrics`: what Prometheus' own parser reads is what stands on the board."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from hybridgen.ipc.board import Board, ProcessState, Role
from hybridgen.server.app import App
from hybridgen.server.auth import ApiKeys
from hybridgen.server.board_reading import BoardReader
from hybridgen.server.metric_table import METRICS
from hybridgen.server.metrics_page import MetricsPage
from hybridgen.server.vllm_metrics import ALIASES
from hybridgen.version import __version__
from tests.support.asgi_driver import Visit
from tests.support.front_door import MODELS, VOCABULARY, play
from tests.support.scripted_backend import ScriptedBackend

NAMES = ["supervisor-0", "coscheduler-0", "gpu-0", "sampler-0", "sampler-1", "tokenizer-0"]
NAMES += ["detokenizer-0", "gateway-0"]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Stage:
    """The application with its metrics page over a board that the test writes."""

    def __init__(self, *, keys: ApiKeys | None = None, is_open: bool = False) -> None:
        self.board = Board.in_memory(len(NAMES))
        for i, name in enumerate(NAMES):
            role, _, index = name.partition("-")
            self.board.line(i).begin(100 + i, 1, Role.of(role), int(index), 1)
            self.board.line(i).set_state(ProcessState.READY)
        self.num_refreshed = 0
        reader = BoardReader(self.board, NAMES)
        page = MetricsPage(reader, model='a "b"\\c', device="cpu", refresh=self._refresh)
        routes = [page.route(is_open=is_open)]
        self.app = App(ScriptedBackend(), MODELS, VOCABULARY, keys=keys, routes=routes)

    def _refresh(self) -> None:
        self.num_refreshed += 1

    def line(self, name: str) -> Any:
        return self.board.line(NAMES.index(name))

    def get(self, query: str = "", **headers: str) -> Visit:
        visits: list[Visit] = []

        async def scene() -> None:
            visits.append(await Visit(self.app, "GET", f"/metrics{query}", headers=headers).done())

        play(scene())
        return visits[0]

    def samples(self, query: str = "") -> Samples:
        visit = self.get(query)
        assert visit.status == 200
        return read(visit.body.decode())


def read(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read_text(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_counters_and_levels_are_those_of_the_board() -> None:
    stage = Stage()
    brain = stage.line("coscheduler-0")
    for counter, number in {"accepted": 9, "running": 2, "ended_length": 4, "poisoned": 1}.items():
        brain.set(counter, number)
    brain.set("blocks", 10)
    brain.set("free_blocks", 4)
    for sampler, number in (("sampler-0", 3), ("sampler-1", 5)):
        stage.line(sampler).set("tokens", number)
    seen = stage.samples()
    assert value(seen, "hybridgen_requests_accepted_total") == 9
    assert value(seen, "hybridgen_requests_running") == 2
    assert value(seen, "hybridgen_requests_finished_total", reason="length") == 4
    assert value(seen, "hybridgen_requests_poisoned_total") == 1
    assert value(seen, "hybridgen_kv_cache_usage_ratio") == pytest.approx(0.6)
    assert value(seen, "hybridgen_sampled_tokens_total") == 8


def test_a_histogram_is_cumulative_and_in_seconds() -> None:
    stage = Stage()
    first = stage.line("detokenizer-0").histograms()["ttft"]
    for seconds in (0.0005, 0.004, 0.004, 60.0):
        first.observe_s(seconds)
    seen = stage.samples()
    name = "hybridgen_time_to_first_token_seconds"
    assert value(seen, f"{name}_bucket", le="0.001") == 1
    assert value(seen, f"{name}_bucket", le="0.005") == 3
    assert value(seen, f"{name}_bucket", le="10.0") == 3
    assert value(seen, f"{name}_bucket", le="+Inf") == value(seen, f"{name}_count") == 4
    assert value(seen, f"{name}_sum") == pytest.approx(60.0085)


def test_every_bound_that_was_promised_is_there() -> None:
    seen = Stage().samples()
    bounds = {
        name: [float(dict(labels)["le"]) for n, labels in seen if n == f"hybridgen_{name}_bucket"]
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds")
    }
    assert min(bounds["time_to_first_token_seconds"]) == 0.001
    assert sorted(bounds["time_to_first_token_seconds"])[-2] == 10.0
    assert min(bounds["inter_token_latency_seconds"]) == 0.0001


def test_a_mean_is_shown_as_its_sum_and_number() -> None:
    stage = Stage()
    stage.line("gpu-0").set("steps", 4)
    stage.line("gpu-0").set("step_ns", 2 * 10**9)
    seen = stage.samples()
    assert value(seen, "hybridgen_step_time_seconds_count") == 4
    assert value(seen, "hybridgen_step_time_seconds_sum") == 2.0
    assert value(seen, "hybridgen_stage_seconds_total", stage="decode") == 2.0


def test_every_process_has_its_lines() -> None:
    stage = Stage()
    stage.line("tokenizer-0").begin(7, 7, Role.TOKENIZER, 0, 3)
    seen = stage.samples()
    labels = {"process": "tokenizer-0", "role": "tokenizer"}
    assert value(seen, "hybridgen_process_up", **labels) == 0
    assert value(seen, "hybridgen_process_restarts_total", **labels) == 2
    assert {dict(labels)["process"] for n, labels in seen if n == "hybridgen_process_up"} == set(
        NAMES
    )


def test_labels_carry_any_name() -> None:
    info = {"version": __version__, "model": 'a "b"\\c', "device": "cpu"}
    assert value(Stage().samples(), "hybridgen_info", **info) == 1


def test_the_gateways_own_line_is_fresh() -> None:
    stage = Stage()
    stage.samples()
    assert stage.num_refreshed == 1


@pytest.mark.parametrize("query", ["", "?compat=vllm"])
def test_prometheus_reads_both_formats_and_finds_the_same(query: str) -> None:
    stage = Stage()
    stage.line("coscheduler-0").set("accepted", 5)
    text, modern = stage.get(query), stage.get(query, accept=OPENMETRICS)
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4;")
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.body.endswith(b"# EOF\n")
    assert modern.body.count(b"# EOF") == 1
    steady = {key: v for key, v in read(text.body.decode()).items() if "age" not in key[0]}
    again = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read_openmetrics(modern.body.decode())
        for sample in family.samples
    }
    assert steady == {key: v for key, v in again.items() if "age" not in key[0]}


def test_every_metric_is_there_once_with_its_kind_and_meaning() -> None:
    families = {f.name: f for f in read_text(Stage().get().body.decode())}
    assert len(families) == len(METRICS) + 1
    for spec in METRICS:
        family = families[spec.name]
        assert (family.type, family.documentation) == (spec.kind, spec.meaning)
        assert family.samples


def test_vllms_names_carry_the_same_values_under_its_labels() -> None:
    stage = Stage()
    stage.line("coscheduler-0").set("cancelled", 3)
    stage.line("coscheduler-0").histograms()["e2e"].observe_s(1.5)
    stage.line("detokenizer-0").set("sent_tokens", 77)
    labels = {"model_name": 'a "b"\\c', "engine": "0"}
    seen = stage.samples("?compat=vllm")
    assert value(seen, "vllm:generation_tokens_total", **labels) == 77
    assert value(seen, "vllm:request_success_total", finished_reason="abort", **labels) == 3
    assert value(seen, "vllm:e2e_request_latency_seconds_bucket", le="2.0", **labels) == 1
    names = {family.name for family in read_text(stage.get("?compat=vllm").body.decode())}
    assert set(ALIASES) <= names
    assert not any(name.startswith("vllm:") for name, _ in stage.samples())


@pytest.mark.parametrize("query", ["?compat=tgi", "?compat=", "?x=1", "?compat=vllm&compat=tgi"])
def test_another_query_is_refused_by_name(query: str) -> None:
    answer = Stage().get(query)
    assert answer.status == 400
    assert answer.error["param"] in {"compat", "x"}


def test_a_key_is_needed_where_keys_are_unless_it_is_said_otherwise() -> None:
    keys = ApiKeys(["secret-key"])
    assert Stage(keys=keys).get().status == 401
    assert Stage(keys=keys).get(authorization="Bearer secret-key").status == 200
    assert Stage(keys=keys, is_open=True).get().status == 200


def test_streams_go_on_while_the_page_is_made() -> None:
    stage = Stage()
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scene() -> None:
        task = asyncio.create_task(other_work())
        await Visit(stage.app, "GET", "/metrics").done()
        task.cancel()

    play(scene())
    assert turns >= len(METRICS)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_server_with_the_page_describes_it(is_open: bool) -> None:
    async def scene() -> None:
        app = Stage(keys=ApiKeys(["secret-key"]), is_open=is_open).app
        headers = {"authorization": "Bearer secret-key"}
        visit = await Visit(app, "GET", "/openapi.json", headers=headers).done()
        assert ("security" not in visit.json["paths"]["/metrics"]["get"]) == is_open

    play(scene())
