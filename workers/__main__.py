"""`python -m hybridgen.workers <control descriptor>`: how the supervisor starts every child."""

from __future__ import annotations

import signal
import sys

from hybridgen.ipc import _native

# Before anything heavy is imported: a supervisor killed meanwhile takes this process with it.
_native.set_parent_death_signal(signal.SIGKILL)

from hybridgen.workers.lifecycle import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv))
