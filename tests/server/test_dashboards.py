"""The dashboard and the alerts that ship with HybridGen ask only for metrics that it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hybridgen.ipc.board import Board, ProcessState, Role
from hybridgen.server.board_reading import BoardReader
from hybridgen.server.metrics_page import MetricsPage

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAME = re.compile(r"\b(?:hybridgen|vllm)[_:][a-zA-Z0-9_:]+")
LABEL = re.compile(r"(\w+)\s*=~?\s*\"")


def exposed() -> dict[str, set[str]]:
    """Sample name → names of its labels."""
    names = [f"{role.label}-0" for role in Role]
    board = Board.in_memory(len(names))
    for i, role in enumerate(Role):
        board.line(i).begin(1, 1, role, 0, 1)
        board.line(i).set_state(ProcessState.READY)
    page = MetricsPage(BoardReader(board, names), model="m", device="cpu", refresh=lambda: None)
    samples: dict[str, set[str]] = {}
    for family in page.families(is_compatible=True):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((DOCS / "grafana/hybridgen.json").read_text())
    return board


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / "prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    for rule in alerts():
        yield rule["expr"]


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_asks_for_what_is_exposed(expression: str) -> None:
    known = exposed()
    asked = NAME.findall(expression)
    assert asked
    for name in asked:
        assert name in known
    # Prometheus itself adds the instance that was scraped.
    labels = set().union(*(known[name] for name in asked)) | {"instance"}
    assert set(LABEL.findall(expression)) <= labels
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")


def test_panels_have_their_own_place_and_number() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_alert_has_a_name_a_weight_and_a_sentence() -> None:
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
