"""The process tree as a table: drawn on a terminal, plain columns elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from hybridgen.launch.placement import format_cpus
from hybridgen.launch.preflight import format_bytes
from hybridgen.messages import ProcessList, RingFill
from hybridgen.server.process_facts import process_facts

COLUMNS = (
    *("name", "pid", "incarnation", "state", "CPUs", "memory", "progress", "age", "rings"),
    *("restarts", "last exit"),
)


def tree_rows(tree: ProcessList) -> list[list[str]]:
    """One row of texts per process."""
    return [
        [
            process.name,
            str(process.pid) if process.pid else "-",
            str(process.incarnation),
            process.state,
            format_cpus(process.cpus) or "-",
            format_bytes(process.rss_bytes) if process.rss_bytes else "-",
            str(process.progress),
            format_age(process.progress_age_s),
            " ".join(map(format_ring, process.rings)) or "-",
            str(process.restarts),
            process.last_exit or "-",
        ]
        for process in tree.processes
    ]


def format_age(age_s: float | None) -> str:
    """``0.2 s``, ``75 s``; a dash where there is nothing to age."""
    if age_s is None:
        return "-"
    return f"{age_s:.1f} s" if age_s < 10 else f"{age_s:.0f} s"


def format_ring(ring: RingFill) -> str:
    """``logits 1/2``."""
    room = "" if ring.capacity is None else f"/{ring.capacity}"
    return f"{ring.name} {ring.depth}{room}"


def headline(tree: ProcessList, uri: str) -> str:
    """One line about the tree as a whole."""
    state = "ready" if tree.is_ready else "not ready"
    return (
        f"{uri}  {tree.model} on {tree.device}, {state}, up {tree.uptime_s:.0f} s, "
        f"{format_bytes(tree.shm_bytes)} of shared memory"
        + (f", groups in {tree.cgroup}" if tree.cgroup else "")
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    """Print rows below their column names."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        _print_rich(columns, rows, stream)
        return
    lines = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip(), file=stream)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    from rich.console import Console  # noqa: PLC0415  # only on a terminal
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, header_style="bold")  # NO_COLOR is honoured by rich
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    Console(file=stream).print(table)


def print_tree(tree: ProcessList, uri: str, stream: TextIO = sys.stdout) -> None:
    """Headline and table of one tree."""
    print(headline(tree, uri), file=stream)
    print_table(COLUMNS, tree_rows(tree), stream)


def tree_json(tree: ProcessList, uri: str) -> dict[str, Any]:
    """The same for programs: what `/ps` answers, and where the tree is."""
    return {"uri": uri, **process_facts(tree)}
