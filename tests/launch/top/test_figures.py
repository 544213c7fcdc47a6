from __future__ import annotations

import pytest

from hybridgen.ipc.board import HISTOGRAMS, Role
from hybridgen.launch.top.figures import figures, process_rates, quantile
from tests.launch.top.trees import busy_tree, process, tree


def test_rates_are_of_the_time_between_the_looks() -> None:
    seen = figures(busy_tree(10.0, 1000), busy_tree(12.0, 3000))
    assert seen.span_s == 2.0
    assert seen.tokens_per_s == 1000.0
    assert seen.requests_per_s == 100.0
    assert seen.step_ms == pytest.approx(4.0)
    assert (seen.num_running, seen.num_waiting, seen.num_open) == (4, 7, 3)


def test_a_first_look_has_levels_but_no_rates() -> None:
    seen = figures(None, busy_tree(12.0, 3000))
    assert (seen.span_s, seen.tokens_per_s, seen.step_ms, seen.latencies) == (0.0, 0.0, None, {})
    assert seen.num_running == 4
    assert set(process_rates(None, busy_tree(12.0, 3000))) == {f"{role.label}-0" for role in Role}


def test_another_tree_at_the_address_is_a_first_look() -> None:
    assert figures(tree(1.0, instance="a"), tree(2.0, instance="b")).span_s == 0.0


def test_a_replaced_process_counts_from_zero() -> None:
    old = process(Role.SAMPLER, counters={"tokens": 900}, progress=90, cpu_time_s=9.0)
    new = process(
        Role.SAMPLER, pid=4242, incarnation=2, counters={"tokens": 50}, progress=5, cpu_time_s=0.5
    )
    assert figures(tree(1.0, old), tree(2.0, new)).tokens_per_s == 50.0
    assert process_rates(tree(1.0, old), tree(2.0, new))["sampler-0"].cpu == 0.0


def test_a_process_is_rated_by_itself() -> None:
    rate = process_rates(busy_tree(10.0, 1000), busy_tree(12.0, 3000))["gpu-0"]
    assert rate.cpu == pytest.approx(0.5)
    assert rate.progress_per_s == 100.0
    assert rate.counters_per_s["steps"] == 100.0


def test_latencies_are_of_what_was_counted_meanwhile() -> None:
    seen = figures(busy_tree(1.0, 1000), busy_tree(2.0, 2000))
    bounds = next(spec.bounds for spec in HISTOGRAMS[Role.DETOKENIZER] if spec.name == "ttft")
    latency = seen.latencies["first token"]
    assert bounds[2] / 1e9 < latency.p50_s < latency.p99_s <= bounds[3] / 1e9
    assert set(seen.latencies) == {"first token"}


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([4, 0, 0, 0], 0.5, 5.0),
        ([0, 4, 0, 0], 1.0, 20.0),
        ([1, 1, 2, 0], 0.5, 20.0),
        ([0, 0, 0, 3], 0.5, 40.0),
        ([2, 0, 2, 0], 0.99, 39.6),
    ],
)
def test_a_quantile_is_spread_over_its_bucket(
    counts: list[int], share: float, value: float
) -> None:
    assert quantile([10, 20, 40], counts, share) == pytest.approx(value)
