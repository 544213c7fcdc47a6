"""`hybridgen stop`."""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer


def command(
    uri: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Option("--uri", help="Which tree, when several run.", show_default=False),
    ] = None,
    drain_timeout_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--drain-timeout-s",
            help="How long running requests may take; the tree's own limit without it.",
            min=0.0,
            show_default=False,
        ),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every tree of this user.")] = False,
) -> None:
    """Refuse new work, finish what runs, end; returns when the tree is gone."""
    from hybridgen.ipc.runtime_dir import RuntimeDir
    from hybridgen.launch import instances
    from hybridgen.launch.stop_tree import stop_tree

    paths = instances.running() if is_all else [instances.find(uri)]
    for path in paths:
        address = RuntimeDir(path).uri
        stop_tree(address, drain_timeout_s)
        print(f"stopped {address}", file=sys.stderr)
