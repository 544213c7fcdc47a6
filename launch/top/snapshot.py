"""`hybridgen top` without a terminal: two looks, and what happened between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

from hybridgen.launch.process_table import headline, print_table, tree_json
from hybridgen.launch.top.figure_lines import figure_lines
from hybridgen.launch.top.figures import figures, process_rates
from hybridgen.launch.top.rows import COLUMNS, ORDERS, rows
from hybridgen.messages import ProcessList


def print_snapshot(
    look: Callable[[], ProcessList],
    uri: str,
    interval_s: float,
    *,
    is_json: bool,
    stream: TextIO | None = None,
) -> None:
    """Print the tree once, as texts or as JSON."""
    out = sys.stdout if stream is None else stream
    before = look()
    time.sleep(interval_s)
    now = look()
    so_far = figures(before, now)
    if is_json:
        facts = {**tree_json(now, uri), "figures": msgspec.to_builtins(so_far)}
        print(msgspec.json.format(msgspec.json.encode(facts)).decode(), file=out)
        return
    print("\n".join([headline(now, uri), *figure_lines(so_far)]), file=out)
    shown = rows(now, process_rates(before, now), ORDERS[0])
    print_table([column.name for column in COLUMNS], list(shown.values()), out)
