"""A tree of stand-in workers under a real supervisor, seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.eventually import eventually
from tests.support.free_port import free_port

ROOT = Path(__file__).parents[2]


def child_environment(**extra: str) -> dict[str, str]:
    """For processes that import from this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


class StandInTree:
    """Starts on construction; a context manager that leaves nothing behind."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        self._notes = folder / "notes"
        self._uri_file = folder / "uri"
        self.runtime_dir = folder / "run"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "tests.support.stand_in_tree"),
                *("mock", "--uri-file", str(self._uri_file)),
                *("--runtime-dir", str(self.runtime_dir)),
                *("--port", str(free_port()), *options),
            ],
            env=child_environment(
                STAND_IN_NOTES=str(self._notes), XDG_RUNTIME_DIR=str(folder), **environment
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        self._everyone: list[psutil.Process] = []

    def __enter__(self) -> StandInTree:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._everyone += self.children()
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        eventually(lambda: not self.survivors(), 5.0)

    @property
    def uri(self) -> str:
        return self._uri_file.read_text().strip()

    def wait_ready(self) -> StandInTree:
        eventually(lambda: self._uri_file.exists() or self.process.poll() is not None, 60.0)
        assert self._uri_file.exists(), self.wait_exit()[1]
        self._everyone = self.children()
        return self

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def track(self) -> list[psutil.Process]:
        """Remember the children of this moment, for ``survivors``."""
        self._everyone += self.children()
        return self._everyone

    def survivors(self) -> list[psutil.Process]:
        """Children ever seen that still run."""
        return [p for p in self._everyone if p.is_running() and p.status() != "zombie"]

    def pid_of(self, name: str) -> int:
        """Process id by title; 0 while there is none."""
        for child in self.children():
            try:
                title = child.cmdline()
            except psutil.Error:
                continue
            if title and title[0].endswith(f":{name}"):
                return child.pid
        return 0

    def kill_and_wait_for_successor(self, name: str, signum: int = signal.SIGKILL) -> None:
        old = self.pid_of(name)
        os.kill(old, signum)
        eventually(lambda: self.pid_of(name) not in (0, old), 10.0)
        self._everyone += self.children()

    def notes(self) -> list[str]:
        """What the stand-ins wrote down."""
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def wait_exit(self, timeout_s: float = 20.0) -> tuple[int, str]:
        """(exit code, standard error) of the supervisor."""
        _, errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, errors
