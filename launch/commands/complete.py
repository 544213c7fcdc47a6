"""`hybridgen complete [MODEL]`, also installed as `hybridgen-cli`."""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer

from hybridgen.launch.config_command import PRIVATE_SECTIONS, config_command
from hybridgen.launch.config_sources import ResolvedConfig
from hybridgen.launch.exit_codes import EXIT_INTERRUPTED, EXIT_OK
from hybridgen.request import SamplingParams


def complete(
    resolved: ResolvedConfig,
    model_argument: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
    ] = None,
    *,
    prompt: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--prompt", "-p", help="Text to continue; standard input without it."),
    ] = None,
    uri: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--uri", help="Use this running tree.", show_default=False),
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the whole result as JSON, not a stream.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check model and plan; start and compute nothing.")
    ] = False,
    sampling: SamplingParams,
) -> int:
    """Continue a text, exactly as it stands: no chat template."""
    del model_argument  # config_command has put it into the configuration
    if dry_run:
        from hybridgen.launch.dry_run import dry_run as check

        check(resolved.config, sys.stdout, is_public=False)
        return EXIT_OK
    import msgspec

    from hybridgen.launch.answer import stream_answer
    from hybridgen.launch.attach import client_for

    text = sys.stdin.read() if prompt is None else prompt
    with client_for(resolved, uri) as (client, _):
        if is_json:
            output = client.generate(text, sampling)
            print(msgspec.json.format(msgspec.json.encode(output)).decode())
            return 0
        _, speed = stream_answer(client, text, sampling)
        print(f"[{speed}]", file=sys.stderr)
    return EXIT_INTERRUPTED if speed.is_cut else EXIT_OK


command = config_command(complete, sections=PRIVATE_SECTIONS)
