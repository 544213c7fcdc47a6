"""A supervisor that starts one worker, says its pid, and waits to be killed.

``python -m tests.workers.orphanage``; the worker (``idle``) looks at nothing by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from hybridgen.config import Config
from hybridgen.ipc.control import ControlSocket, control_pair
from hybridgen.messages import LoadProgress, StandBy, WorkerReady, WorkerSpec, encode
from hybridgen.workers.lifecycle import Entry


def bare_spec(entry: str) -> WorkerSpec:
    """A worker without segments."""
    return WorkerSpec(
        role="sampler",
        index=0,
        incarnation=1,
        instance="test",
        entry=entry,
        supervisor_pid=os.getpid(),
        config=Config(),
        model_path="mock",
        runtime_dir="/nonexistent",
        segment_fds={},
        doorbell_fds={},
        worker_names=["sampler-0"],
        board_index=0,
    )


def bare_order(entry: str, supervisor_pid: int = 0) -> StandBy:
    """To wait, and to prepare by ``entry``."""
    return StandBy(
        title="waits",
        entry=entry,
        supervisor_pid=supervisor_pid or os.getpid(),
        model_path="mock",
        config=Config(),
    )


def start_process() -> tuple[subprocess.Popen[bytes], ControlSocket]:
    """A worker process that waits for its spec, and this side of its control socket."""
    ours, theirs = control_pair()
    command = [sys.executable, "-m", "hybridgen.workers", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    return process, ours


def start_worker(entry: str) -> tuple[subprocess.Popen[bytes], ControlSocket]:
    """The same with a spec."""
    process, control = start_process()
    control.send(encode(bare_spec(entry)))
    return process, control


def idle(_spec: WorkerSpec, control: ControlSocket) -> int:
    """A worker's entry: says that it is there, and never wakes again."""
    control.send(encode(WorkerReady(rss_bytes=0, cpus=[])))
    signal.pause()
    return 0


def prepare(model_path: str, _config: Config) -> Entry:
    """An entry for one that waits: what it prepares says what it was given."""

    def tell(spec: WorkerSpec, control: ControlSocket) -> int:
        control.send(encode(LoadProgress(spec.incarnation, model_path)))
        return 0

    return tell


def refuse_ahead(_model_path: str, _config: Config) -> Entry:
    """The same: cannot start, for a reason that we know."""
    from hybridgen.errors import BadModelFile

    raise BadModelFile("the file is cut off", value=3, limit=7)


def refuse(_spec: WorkerSpec, _control: ControlSocket) -> int:
    """A worker's entry: cannot start, for a reason that we know."""
    from hybridgen.errors import BadModelFile

    raise BadModelFile("the file is cut off", value=3, limit=7)


def break_down(_spec: WorkerSpec, _control: ControlSocket) -> int:
    """A worker's entry: a bug."""
    raise ZeroDivisionError("by zero")


def main() -> int:
    process, control = start_worker("tests.workers.orphanage:idle")
    if control.receive(20.0) is None:
        return 1
    print(process.pid, flush=True)
    signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
