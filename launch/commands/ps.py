"""`hybridgen ps`."""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer


def command(
    uri: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Option("--uri", help="Only this tree.", show_default=False),
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the processes of all running trees of this user."""
    import msgspec

    from hybridgen.client.client import Client
    from hybridgen.ipc.runtime_dir import RuntimeDir
    from hybridgen.launch import instances
    from hybridgen.launch.process_table import print_tree, tree_json

    uris = [uri] if uri is not None else [RuntimeDir(path).uri for path in instances.running()]
    trees = []
    for address in uris:
        with Client(address) as client:
            trees.append((client.ps(), address))
    if is_json:
        listing = [tree_json(tree, address) for tree, address in trees]
        print(msgspec.json.format(msgspec.json.encode(listing)).decode())
        return
    for tree, address in trees:
        print_tree(tree, address)
    if not trees:
        print("no tree is running", file=sys.stderr)
