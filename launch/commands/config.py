"""`hybridgen config show`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hybridgen.launch.config_command import config_command
from hybridgen.launch.config_sources import ResolvedConfig

command = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def show(
    resolved: ResolvedConfig,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Print every option: its value and where it comes from."""
    import msgspec

    from hybridgen.launch.config_fields import config_fields
    from hybridgen.launch.process_table import print_table

    rows = [
        (field.key, getattr(getattr(resolved.config, field.section), name), resolved.sources[name])
        for name, field in config_fields().items()
    ]
    if is_json:
        listing = [{"key": key, "value": value, "source": source} for key, value, source in rows]
        print(msgspec.json.format(msgspec.json.encode(listing)).decode())
        return 0
    texts = [[key, _text(value), source] for key, value, source in rows]
    print_table(("option", "value", "source"), texts, sys.stdout)
    return 0


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "-"


command.command("show")(config_command(show))


@command.callback()
def group() -> None:
    """Options: their values and sources."""
