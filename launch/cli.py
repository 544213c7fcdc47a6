"""The command line: one table of commands, each loaded only when it is the one asked for."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridgen.errors import HybridGenError
from hybridgen.launch import standard_streams
from hybridgen.launch.exit_codes import EXIT_INTERRUPTED, EXIT_OUTPUT
from hybridgen.printable import printable

_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EPIPE})


class CommandEntry(NamedTuple):
    """A command: where it lives and what it is for."""

    module: str
    help: str
    group: str = ""


COMMANDS: dict[str, CommandEntry] = {
    "serve": CommandEntry("serve", "Serve a model until told to stop."),
    "chat": CommandEntry("chat", "Talk to a model; -q TEXT for one answer."),
    "complete": CommandEntry("complete", "Continue a text."),
    "ps": CommandEntry("ps", "List the processes of a running tree."),
    "top": CommandEntry("top", "Watch a running tree."),
    "stop": CommandEntry("stop", "Drain and stop a running tree."),
    "convert": CommandEntry("convert", "Make one .hybridgen file of a model."),
    "inspect": CommandEntry("inspect", "Show what a model is, without loading it."),
    "config": CommandEntry("config", "Show every option, its value and where it comes from."),
    "chaos": CommandEntry("chaos", "Kill processes under load and check every text."),
    "doctor": CommandEntry("doctor", "Check what a tree needs from this machine."),
    "version": CommandEntry("version", "Print versions."),
}


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name).

    Returns:
        The exit code: 0 ok · 2 usage or configuration · 65 bad model · 69 unavailable ·
        70 internal or given up · 74 output cannot be written · 75 already running ·
        77 permission · 130 interrupted.
    """
    standard_streams.prepare()
    try:
        exit_code = _dispatch(arguments)
        sys.stdout.flush()
        return exit_code
    except HybridGenError as error:
        if _is_debug(arguments):
            traceback.print_exception(error)
        print(render_error(error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        standard_streams.silence()
        return EXIT_OUTPUT


def _dispatch(arguments: Sequence[str]) -> int:
    import typer  # noqa: PLC0415  # late: `hybridgen.launch.cli` is imported by light programs, too

    from hybridgen.launch.switches import spell_out_switches  # noqa: PLC0415

    wanted = next((word for word in arguments if not word.startswith("-")), None)
    if wanted in COMMANDS:
        arguments = spell_out_switches(arguments)
    app = typer.Typer(
        name="hybridgen",
        help="Serve large language models with the GPU doing dense arithmetic only.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, entry in COMMANDS.items():
        command = _load(entry) if name == wanted else _not_loaded
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, help=entry.help)
        else:
            # The asked-for command's docstring says more than its line in the list.
            app.command(name, help=None if name == wanted else entry.help)(command)
    try:
        app(args=list(arguments), prog_name="hybridgen", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def _load(entry: CommandEntry) -> Any:
    return importlib.import_module(f"hybridgen.launch.commands.{entry.module}").command


def _not_loaded() -> None:
    """Stands for the commands that were not asked for: only their help line is needed."""


def render_error(error: HybridGenError) -> str:
    """What, value, limit and remedy, a line each."""
    lines = [f"error: {error.message}"]
    lines += [f"  {key}: {error.fields[key]}" for key in ("value", "limit") if key in error.fields]
    known = {"value", "limit", "remedy"}
    lines += [f"  {key}: {value}" for key, value in error.fields.items() if key not in known]
    if "remedy" in error.fields:
        lines.append(f"  remedy: {error.fields['remedy']}")
    return "\n".join(map(printable, "\n".join(lines).split("\n")))


def _is_debug(arguments: Sequence[str]) -> bool:
    line = " ".join(arguments)
    return (
        "--log-level debug" in line
        or "--log-level=debug" in line
        or os.environ.get("HYBRIDGEN_LOG_LEVEL") == "debug"
    )
