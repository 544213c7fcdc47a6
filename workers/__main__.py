"""`python -m hybridgen.workers <control descriptor>`: how the supervisor starts every child."""

from __future__ import annotations

import sys

from hybridgen.workers.lifecycle import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
