"""`hybridgen top`."""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer


def command(
    uri: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Option("--uri", help="Of the tree; needed when several run.", show_default=False),
    ] = None,
    interval_s: Annotated[
        float, typer.Option("--interval-s", min=0.1, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
    is_json: Annotated[bool, typer.Option("--json", help="Look once and print JSON.")] = False,
) -> None:
    """Watch the processes, the queue, the speed and the latencies of a running tree.

    Without a terminal it looks once, at what happens within the interval.
    """
    from hybridgen.client.client import Client
    from hybridgen.ipc.runtime_dir import RuntimeDir
    from hybridgen.launch import instances

    address = RuntimeDir(instances.find(uri)).uri
    with Client(address) as client:
        if is_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            from hybridgen.launch.top.snapshot import print_snapshot

            print_snapshot(client.ps, address, interval_s, is_json=is_json)
            return
        from hybridgen.launch.top.screen import TopScreen

        TopScreen(client.ps, address, interval_s).run()
