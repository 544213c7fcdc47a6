"""`hybridgen doctor`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hybridgen.launch.exit_codes import EXIT_OK, EXIT_UNAVAILABLE


def command(is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check what a tree needs from this machine; exit code 69 when something is missing."""
    import msgspec

    from hybridgen.launch.doctor import Verdict, examine
    from hybridgen.launch.process_table import print_table

    findings = examine()
    if is_json:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        rows = [[f.check, f.verdict.value, f.found, f.remedy or "-"] for f in findings]
        print_table(("check", "verdict", "found", "remedy"), rows, sys.stdout)
    has_failed = any(finding.verdict is Verdict.FAIL for finding in findings)
    raise typer.Exit(EXIT_UNAVAILABLE if has_failed else EXIT_OK)
