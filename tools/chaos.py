"""`hybridgen chaos` without an installed command: python -m tools.chaos [--scenario …]."""

from __future__ import annotations

import sys

from hybridgen.launch.cli import run

if __name__ == "__main__":
    sys.exit(run(["chaos", *sys.argv[1:]]))
