"""Entry points: `hybridgen`, and the aliases of the first description of the system."""

from __future__ import annotations

import sys

from hybridgen.launch.cli import run


def main() -> int:
    """`hybridgen COMMAND …`."""
    return run(sys.argv[1:])


def server() -> int:
    """`hybridgen-server …` = `hybridgen serve …`."""
    return run(["serve", *sys.argv[1:]])


def cli() -> int:
    """`hybridgen-cli …` = `hybridgen complete …`."""
    return run(["complete", *sys.argv[1:]])


def gguf2hybridgen() -> int:
    """`gguf2hybridgen …` = `hybridgen convert …`."""
    return run(["convert", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
