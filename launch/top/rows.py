"""Processes as rows of texts, in the order that was asked for: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hybridgen.launch.placement import format_cpus
from hybridgen.launch.preflight import format_bytes
from hybridgen.launch.process_table import format_age, format_ring
from hybridgen.launch.top.figures import ProcessRate
from hybridgen.messages import ProcessInfo, ProcessList

Show = Callable[[ProcessInfo, ProcessRate], str]
Weigh = Callable[[ProcessInfo, ProcessRate], float]


class Column(NamedTuple):
    """One column: what it shows of a process and, where it can be sorted by, its weight."""

    name: str
    show: Show
    weigh: Weigh | None = None


COLUMNS = (
    Column("process", lambda process, _: process.name),
    Column("pid", lambda process, _: str(process.pid) if process.pid else "-"),
    Column("incarnation", lambda process, _: str(process.incarnation)),
    Column("state", lambda process, _: process.state),
    Column("CPU", lambda _, rate: f"{rate.cpu:.0%}", lambda _, rate: rate.cpu),
    Column("cores", lambda process, _: format_cpus(process.cpus) or "-"),
    Column(
        "memory",
        lambda process, _: format_bytes(process.rss_bytes) if process.rss_bytes else "-",
        lambda process, _: process.rss_bytes,
    ),
    Column(
        "work/s",
        lambda _, rate: f"{rate.progress_per_s:.0f}",
        lambda _, rate: rate.progress_per_s,
    ),
    Column(
        "age",
        lambda process, _: format_age(process.progress_age_s),
        lambda process, _: process.progress_age_s or 0.0,
    ),
    Column("rings", lambda process, _: " ".join(map(format_ring, process.rings)) or "-"),
    Column(
        "restarts", lambda process, _: str(process.restarts), lambda process, _: process.restarts
    ),
    Column("last exit", lambda process, _: process.last_exit or "-"),
)
#: The order of the tree, then by these, the largest first.
ORDERS = ("tree", *(column.name for column in COLUMNS if column.weigh is not None))


def rows(tree: ProcessList, rates: Mapping[str, ProcessRate], order: str) -> dict[str, list[str]]:
    """Process name → its cells, in one of ``ORDERS``."""
    processes = ordered(tree, rates, order)
    cells = {
        process.name: [column.show(process, rates[process.name]) for column in COLUMNS]
        for process in processes
    }
    if order == "tree":
        for number, process in enumerate(processes[1:], start=2):
            branch = "└─" if number == len(processes) else "├─"
            cells[process.name][0] = f"{branch} {process.name}"
    return cells


def ordered(tree: ProcessList, rates: Mapping[str, ProcessRate], order: str) -> list[ProcessInfo]:
    """The processes in one of ``ORDERS``; equal ones stay as they are in the tree."""
    weigh = next((column.weigh for column in COLUMNS if column.name == order), None)
    if weigh is None:
        return tree.processes
    return sorted(tree.processes, key=lambda process: -weigh(process, rates[process.name]))


def details(process: ProcessInfo, rate: ProcessRate) -> list[tuple[str, str]]:
    """Everything about one process, as pairs of a name and a text."""
    pairs = [
        ("pid", f"{process.pid or '-'}, incarnation {process.incarnation}"),
        ("state", process.state),
        ("last progress", format_age(process.progress_age_s)),
        ("cores", format_cpus(process.cpus) or "-"),
        ("memory", format_bytes(process.rss_bytes)),
        ("CPU time", f"{process.cpu_time_s:.1f} s"),
        ("restarts", str(process.restarts)),
        ("last exit", process.last_exit or "-"),
    ]
    pairs += [(ring.name, format_ring(ring).partition(" ")[2]) for ring in process.rings]
    for name, value in process.counters.items():
        per_s = rate.counters_per_s.get(name, 0.0)
        pairs.append((name, f"{value}  (+{per_s:.0f}/s)" if per_s else str(value)))
    return pairs
