"""A worker without a job: speaks the child protocol and misbehaves when told to.

``STAND_IN_<ROLE>`` says how: ``fail`` (typed error), ``exit0``, ``segv``, ``hang``; with
``@<n>`` only from incarnation n on. ``STAND_IN_STANDBY`` is for those that wait. The signal
``EXIT_0`` makes it exit as if all were well. While the file ``STAND_IN_BROKEN`` names exists, this
module cannot be imported.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hybridgen.config import Config
from hybridgen.errors import BadModelFile
from hybridgen.ipc.board import Role
from hybridgen.ipc.channel import Poller
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.runtime_dir import Endpoints
from hybridgen.ipc.worker_links import WorkerLinks
from hybridgen.messages import (
    DeathNoted,
    DrainTree,
    TreeDrained,
    WorkerDied,
    WorkerSpec,
)
from hybridgen.workers.lifecycle import Entry, WorkerContext

EXIT_0 = signal.SIGUSR2

if os.path.exists(os.environ.get("STAND_IN_BROKEN", "")):
    raise ImportError("a library is missing")


def prepare(_model_path: str, _config: Config) -> Entry:
    """The entry of one that waits; one that is to misbehave notes who it is."""
    if how := os.environ.get("STAND_IN_STANDBY", ""):
        _note(f"standby {os.getpid()}")
        _misbehave(how, 1)
    return run


def run(spec: WorkerSpec, control: ControlSocket) -> int:
    """The entry that a spec names."""
    context = WorkerContext(spec, control)
    signal.signal(EXIT_0, lambda *_: os._exit(0))
    _misbehave(os.environ.get(f"STAND_IN_{spec.role.upper()}", ""), spec.incarnation)
    if spec.role == Role.COSCHEDULER.label:
        return _coscheduler(context)
    if spec.role == Role.SAMPLER.label:
        return _sampler(context)
    context.ready()
    poller = Poller()
    poller.add(control)
    while not context.should_exit:
        poller.poll(1.0)
        context.line.beat()
        context.read_orders()
    return 0


def _misbehave(how: str, incarnation: int) -> None:
    word, _, first = how.partition("@")
    if incarnation < int(first or 1):
        return
    if word == "fail":
        raise BadModelFile("the stand-in cannot read this", field="magic", value="junk")
    if word == "exit0":
        os._exit(0)
    if word == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "hang":
        signal.pause()


def _sampler(context: WorkerContext) -> int:
    """Waits for rings and notes the epoch of each."""
    context.segment("logits")
    context.segment("sampled")
    context.ready()
    while (ring := context.wait_for_ring()) is not None:
        _note(f"ring {ring[0].epoch} {ring[1].epoch}")
    return 0


def _coscheduler(context: WorkerContext) -> int:
    """Notes deaths, answers the drain order."""
    spec = context.spec
    names = ["supervisor", *spec.worker_names]
    links = WorkerLinks(Endpoints(Path(spec.runtime_dir)).workers, spec.incarnation, names)
    poller = Poller()
    poller.add(links)
    poller.add(context.control)
    context.ready()
    while not context.should_exit:
        poller.poll(1.0)
        context.line.beat()
        context.read_orders()
        while (arrival := links.receive()) is not None:
            name, _, fact = arrival
            if isinstance(fact, DrainTree):
                _note(f"drain {fact.timeout_s}")
                if os.environ.get("STAND_IN_DRAIN") != "never" or fact.timeout_s == 0.0:
                    links.send(name, TreeDrained(0))
            elif isinstance(fact, WorkerDied):
                final = " final" if fact.is_final else ""
                _note(f"died {fact.role}-{fact.index} {fact.incarnation}{final}")
                links.send(name, DeathNoted(fact.role, fact.index, fact.incarnation))
    links.close()
    return 0


def _note(line: str) -> None:
    with open(os.environ["STAND_IN_NOTES"], "a", encoding="utf-8") as notes:
        notes.write(f"{line}\n")
