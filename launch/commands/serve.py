"""`hybridgen serve MODEL`."""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer

from hybridgen.errors import HybridGenError
from hybridgen.launch.config_command import config_command
from hybridgen.launch.config_sources import ResolvedConfig
from hybridgen.launch.exit_codes import EXIT_OK


def serve(
    resolved: ResolvedConfig,
    model_argument: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
    ] = None,
    owner_fd: Annotated[int, typer.Option(hidden=True)] = -1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check model and plan; start and compute nothing.")
    ] = False,
) -> int:
    """Serve a model until told to stop (SIGTERM, Ctrl-C or `hybridgen stop`)."""
    del model_argument  # config_command has put it into the configuration
    if dry_run:
        from hybridgen.launch.dry_run import dry_run as check

        check(resolved.config, sys.stdout, is_public=True)
        return EXIT_OK
    from hybridgen.launch.banner import StartReport
    from hybridgen.launch.host import host_tree
    from hybridgen.launch.owner import OwnerLine

    config = resolved.config
    report = StartReport(
        sys.stderr,
        is_quiet=config.server.log_level in {"warning", "error"},
        is_logged=config.server.log_format == "json",
    )
    owner = OwnerLine(owner_fd) if owner_fd >= 0 else None
    try:
        return host_tree(config, report, owner)
    except HybridGenError as error:
        if owner is None or owner.is_told:
            raise
        owner.tell_failed(error)  # the owner shows it, once
        return error.exit_code


command = config_command(serve)
