"""`hybridgen version`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the versions of HybridGen and of what it stands on."""
    import msgspec

    from hybridgen.launch.doctor import versions

    found = versions()
    if is_json:
        print(msgspec.json.encode(found).decode())
        return
    for name, version in found.items():
        print(f"{name:<12} {version}")
