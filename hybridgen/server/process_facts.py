"""A process list for programs: the same from `/ps` and from `hybridgen ps --json`."""

from __future__ import annotations

from typing import Any

import msgspec

from hybridgen.messages import ProcessList


def process_facts(tree: ProcessList) -> dict[str, Any]:
    """The tree as plain values, without what only the wire needs; docs/operations.md lists them."""
    facts: dict[str, Any] = msgspec.to_builtins(tree)
    del facts["request_id"], facts["type"]
    for process in facts["processes"]:
        del process["histograms"]  # bare counts; /metrics has them with their bounds
    return facts
