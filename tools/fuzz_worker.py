"""A process of ``tools.fuzz_models``: damages models, reads them, and says what came of it.

It prints a line before each case and one after it, so that whoever started it knows the seed of a
case that ends the process, or never ends::

    {"begin": 17}
    {"seed": 17, "outcome": "inspect: BadModelFile"}
    {"seed": 17, "failure": "Traceback …"}
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from tools.fuzz_case import MAX_RSS_BYTES, Case, Failure, exercise, make_case
from tools.fuzz_specimens import read_specimens


class Workplace:
    """Folders with sound files, into which damaged ones are put."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, case: Case) -> str:
        """The outcome; see ``exercise``."""
        folder = self._folder / case.specimen.name
        sound = case.specimen.files
        if not folder.exists():
            folder.mkdir()
            for name, content in sound.items():
                (folder / name).write_bytes(content)
        damaged = [name for name in sound if case.files[name] is not sound[name]]
        for name in damaged:
            (folder / name).write_bytes(case.files[name])
        try:
            return exercise(folder / case.specimen.path, self._folder / "converted.hybridgen")
        finally:
            for name in damaged:
                (folder / name).write_bytes(sound[name])


def limit_memory() -> None:
    """No more memory than the limit of a case, from now on: what needs more says so by failing."""
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        pages = [int(word) for word in file.read().split()[:2]]
    space, resident = (count * os.sysconf("SC_PAGE_SIZE") for count in pages)
    limit = space + MAX_RSS_BYTES - resident
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(seeds: range, kinds: set[str], specimens: Path, out: TextIO) -> None:
    """Go through ``seeds``; ``kinds``: formats, none for all."""
    found = [s for s in read_specimens(specimens) if not kinds or s.kind in kinds]
    # Beside the sound ones: whoever made those removes it, where this process cannot any more.
    folder = Path(tempfile.mkdtemp(prefix="worker-", dir=specimens.parent))
    try:
        workplace = Workplace(folder)
        for specimen in found:  # imports everything, and shows that they are sound
            outcome = workplace.run(Case(specimen, specimen.files, []))
            if outcome != "read":
                raise Failure(f"the sound model {specimen.name} is not read: {outcome}")
        limit_memory()
        for seed in seeds:
            _tell(out, {"begin": seed})
            try:
                _tell(out, {"seed": seed, "outcome": workplace.run(make_case(seed, found))})
            except Failure as failure:
                _tell(out, {"seed": seed, "failure": str(failure)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(out: TextIO, fact: dict[str, object]) -> None:
    print(json.dumps(fact), file=out, flush=True)


def main() -> None:
    """Command line, for ``tools.fuzz_models``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=3, metavar=("FIRST", "STOP", "STEP"))
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("specimens", type=Path)
    arguments = parser.parse_args()
    # Whatever a library prints must not stand between the lines.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    work(range(*arguments.seeds), set(arguments.kinds), arguments.specimens, out)


if __name__ == "__main__":
    main()
