"""Damages model files in every way we can think of, and looks whether any of them does harm.

``python -m tools.fuzz_models --seconds 120``: sound models of all formats are damaged by field and
by bytes (``tools.mutate_*``), and read as a start of the server does. Each must be read, or refused
by a typed error that names a field, within a second of CPU time and 2 GiB of memory; never another
exception, a crash or a hang. What is not so is kept in ``--keep``, made as small as it goes, and
can be repeated by its seed. Workers are processes of their own, which a damaged model may end.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import IO, Any

from tools.fuzz_case import MAX_DAMAGES, make_case
from tools.fuzz_specimens import make_specimens, read_specimens

#: A case that says nothing for so long hangs (a limit of its own ends it long before).
HANG_S = 30.0
#: Imports and sound models, before the first case.
START_S = 120.0
MAX_FAILURES = 20


@dataclasses.dataclass
class Findings:
    """What came of all cases."""

    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: dict[int, str] = dataclasses.field(default_factory=dict)  # seed → what happened
    took_s: float = 0.0

    @property
    def num_cases(self) -> int:
        """Cases that came to an end, good or bad."""
        return self.outcomes.total() + len(self.failures)

    def __str__(self) -> str:
        """A table, and the rate."""
        lines = [f"{count:>9,}  {outcome}" for outcome, count in self.outcomes.most_common()]
        rate = self.num_cases / max(self.took_s, 1e-9)
        total = f"{self.num_cases:,} damaged models in {self.took_s:.0f} s, {rate:.0f} a second"
        return "\n".join([*lines, f"{total}: {len(self.failures)} failures"])


class Worker:
    """A process that goes through its seeds, and is started again behind one that ended it."""

    def __init__(self, seeds: range, kinds: Sequence[str], specimens: Path) -> None:
        self._seeds = seeds
        self._kinds = kinds
        self._specimens = specimens
        self._start()

    def _start(self) -> None:
        seeds = self._seeds
        bounds = map(str, (seeds.start, seeds.stop, seeds.step))
        command = [sys.executable, "-m", "tools.fuzz_worker", str(self._specimens)]
        command += ["--seeds", *bounds, *(["--kinds", *self._kinds] if self._kinds else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop()
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, env=environment
        )
        assert self._process.stdout is not None  # a pipe was asked for
        self._output: IO[bytes] = self._process.stdout
        self.seed = -1  # of the case under way
        self._rest = b""  # of a line
        self._until_s = time.monotonic() + START_S

    def fileno(self) -> int:
        """Of its output."""
        return self._output.fileno()

    def read(self, findings: Findings) -> bool:
        """Take in what it has written; False at the end."""
        content = os.read(self.fileno(), 2**16)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._take(json.loads(line), findings)
        return bool(content)

    def _take(self, fact: dict[str, Any], findings: Findings) -> None:
        self._until_s = time.monotonic() + HANG_S
        if "begin" in fact:
            self.seed = fact["begin"]
            return
        if "failure" in fact:
            findings.failures[fact["seed"]] = fact["failure"]
        else:
            findings.outcomes[fact["outcome"]] += 1
        self.seed = -1

    def is_stuck(self) -> bool:
        """Whether it has said nothing for too long."""
        return time.monotonic() > self._until_s

    def ended(self, findings: Findings) -> bool:
        """It is gone, or is ended now: whether another was started for the rest of its seeds."""
        is_stuck = self._process.poll() is None and self.is_stuck()
        if is_stuck:
            self._process.kill()
        status = self._process.wait()
        self._log.seek(0)
        log = self._log.read()[-3000:].decode("utf-8", "replace")
        self.stop()
        if status == 0:
            return False
        if self.seed < 0:
            raise SystemExit(f"a worker ended with status {status} outside of any case:\n{log}")
        what = f"no end within {HANG_S} s" if is_stuck else f"the process ended: status {status}"
        findings.failures[self.seed] = f"{what}\n{log}"
        self._seeds = range(self.seed + self._seeds.step, self._seeds.stop, self._seeds.step)
        if len(self._seeds) > 0:
            self._start()
        return len(self._seeds) > 0

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._output.close()
        self._log.close()


def fuzz(
    specimens: Path,
    seeds: range,
    *,
    kinds: Sequence[str] = (),
    num_workers: int = 2,
    seconds: float = float("inf"),
) -> Findings:
    """Go through ``seeds`` until they, or the seconds, are used up.

    Args:
        specimens: folder of sound models, see ``make_specimens``.
        seeds: one of each case.
        kinds: formats; none for all.
        num_workers: processes.
        seconds: of all cases, without the start.
    """
    findings = Findings()
    parts = (seeds[index::num_workers] for index in range(num_workers))
    workers = [Worker(part, kinds, specimens) for part in parts if len(part) > 0]
    started_s = time.monotonic()
    try:
        for _ in _looks(workers, findings):
            if findings.num_cases == 0:
                started_s = time.monotonic()
            findings.took_s = time.monotonic() - started_s
            if findings.took_s > seconds or len(findings.failures) >= MAX_FAILURES:
                break
    finally:
        for worker in workers:
            worker.stop()
    return findings


def _looks(workers: list[Worker], findings: Findings) -> Iterator[None]:
    """Look at all of them again and again, until all have ended."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.fileno(), selectors.EVENT_READ, worker)
        while running := [key.data for key in selector.get_map().values()]:
            ready = {key.data for key, _ in selector.select(timeout=1.0)}
            for worker in running:
                has_more = worker.read(findings) if worker in ready else not worker.is_stuck()
                if has_more:
                    continue
                selector.unregister(worker.fileno())
                if worker.ended(findings):
                    selector.register(worker.fileno(), selectors.EVENT_READ, worker)
            yield


def keep(seed: int, what: str, specimens: Path, kinds: Sequence[str], folder: Path) -> Path:
    """Write a failing case down, with as few damages as still fail.

    Returns:
        Where it was put: the damaged model, and ``why.txt``.
    """
    found = [s for s in read_specimens(specimens) if not kinds or s.kind in kinds]
    case = make_case(seed, found, _fewest(seed, specimens, kinds, what))
    place = folder / f"{case.specimen.name}-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for name, content in case.files.items():
        (place / name).write_bytes(content)
    repeat = f"python -m tools.fuzz_models --seed {seed} --mutations 1"
    repeat += f" --kinds {' '.join(kinds)}" if kinds else ""
    lines = [f"seed {seed}, {case.specimen.name}", *case.damages, "", what, "", repeat, ""]
    (place / "why.txt").write_text("\n".join(lines), encoding="utf-8")
    return place


def _fewest(seed: int, specimens: Path, kinds: Sequence[str], what: str) -> frozenset[int] | None:
    """Indices of damages that fail for themselves; None: all are needed, or it is not known.

    Cases that end their process are left as they are: to repeat them costs a process each.
    """
    if what.startswith(("no end", "the process")):
        return None
    from tools.fuzz_case import Failure
    from tools.fuzz_worker import Workplace

    found = [s for s in read_specimens(specimens) if not kinds or s.kind in kinds]
    with tempfile.TemporaryDirectory(prefix="fuzz-models-") as folder:
        workplace = Workplace(Path(folder))
        for size in range(1, MAX_DAMAGES):
            for subset in combinations(range(MAX_DAMAGES), size):
                try:
                    workplace.run(make_case(seed, found, frozenset(subset)))
                except Failure:
                    return frozenset(subset)
    return None


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--mutations", type=int, default=10**9, help="models to damage")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="or so long")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has the next one")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kinds", nargs="*", default=[], choices=("gguf", "folder", "hybridgen"))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-models-") as name:
        specimens = Path(name) / "specimens"
        specimens.mkdir()
        make_specimens(specimens)
        seeds = range(arguments.seed, arguments.seed + arguments.mutations)
        print(f"seeds from {seeds.start} on, {arguments.workers} workers", flush=True)
        findings = fuzz(
            specimens,
            seeds,
            kinds=arguments.kinds,
            num_workers=arguments.workers,
            seconds=arguments.seconds,
        )
        for seed, what in sorted(findings.failures.items()):
            place = keep(seed, what, specimens, arguments.kinds, arguments.keep)
            print(f"\n{place}:\n{(place / 'why.txt').read_text(encoding='utf-8')}")
    print(findings)
    sys.exit(1 if findings.failures else 0)


if __name__ == "__main__":
    main()
