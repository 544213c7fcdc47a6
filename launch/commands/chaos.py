"""`hybridgen chaos`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Optional

import typer

if TYPE_CHECKING:
    from hybridgen.launch.chaos.options import Options
    from hybridgen.launch.chaos.scenario import Scenario

EXIT_VIOLATIONS = 1


def command(
    *,
    names: Annotated[
        Optional[list[str]],  # noqa: UP045  # typer reads it at run time
        typer.Option("--scenario", help="Which one; may be repeated. Every one without it."),
    ] = None,
    left_out: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--without", help="Leave this one out; may be repeated."),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="Of the tree; answers of others than mock are learned.")
    ] = "mock",
    num_kills: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--kills", min=1, help="Of each scenario; its own number without it."),
    ] = None,
    num_streams: Annotated[
        int, typer.Option("--streams", min=1, max=1024, help="Requests that are open at any time.")
    ] = 50,
    max_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--seconds", min=1.0, help="End each scenario after this.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--seed", help="Of victims, times and questions; drawn without it."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--report", help="Folder for chaos.html, .json, .md and the logs.")
    ] = Path("chaos-report"),
    is_list: Annotated[bool, typer.Option("--list", help="List the scenarios and exit.")] = False,
) -> None:
    """Kill processes of a tree under load and check every text that its clients got.

    The tree is one that the command starts for itself on this machine; no other process is ever
    touched. Exit code 1 when anything was violated.
    """
    import secrets

    from hybridgen.launch.chaos.options import Options
    from hybridgen.launch.chaos.scenario import SCENARIOS, scenario

    if is_list:
        _list()
        return
    unwanted = list(map(scenario, left_out or ()))
    wanted = list(map(scenario, names)) if names else list(SCENARIOS)
    seed = secrets.randbits(32) if seed is None else seed
    options = Options(
        folder=folder,
        seed=seed,
        model=model,
        num_streams=num_streams,
        num_kills=num_kills,
        max_s=max_s,
    )
    _run([one for one in wanted if one not in unwanted], options)


def _list() -> None:
    from hybridgen.launch.chaos.scenario import SCENARIOS
    from hybridgen.launch.process_table import print_table

    rows = [[one.name, str(one.num_kills), one.text] for one in SCENARIOS]
    print_table(("scenario", "kills", "what"), rows, sys.stdout)


def _run(wanted: Sequence[Scenario], options: Options) -> NoReturn:
    from hybridgen.launch.chaos.live import LiveReport
    from hybridgen.launch.chaos.run import PAGE_NAME, run_all

    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", flush=True)
    with LiveReport(sys.stdout) as live:
        report = run_all(wanted, options, live)
    page = options.folder / PAGE_NAME
    print(f"{report.num_violations} violations, seed {options.seed}; see {page}")
    raise typer.Exit(EXIT_VIOLATIONS if report.num_violations else 0)
