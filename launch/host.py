"""`hybridgen serve`: from a configuration to a running tree and to its end, in numbered phases."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import setproctitle

from hybridgen import log
from hybridgen.clock import monotonic_s
from hybridgen.config import Config
from hybridgen.errors import ConfigError
from hybridgen.formats.inspect import inspect_model
from hybridgen.ipc.board import ProcessState, Role
from hybridgen.ipc.channel import Router
from hybridgen.ipc.runtime_dir import RuntimeDir
from hybridgen.ipc.segment import sweep_stale
from hybridgen.launch import instances, placement, preflight
from hybridgen.launch.admin import AdminDesk
from hybridgen.launch.banner import StartReport
from hybridgen.launch.coscheduler_link import CoschedulerLink
from hybridgen.launch.fleet import Fleet
from hybridgen.launch.owner import OwnerLine
from hybridgen.launch.placement import Placement
from hybridgen.launch.plan import TreePlan, make_plan
from hybridgen.launch.segments import TreeSegments
from hybridgen.launch.supervisor import Supervisor
from hybridgen.messages import AdminOrder, Decoder, LoadProgress

logger = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """A plan that passed its checks."""

    plan: TreePlan
    placement: Placement


def prepare(config: Config, report: StartReport | None = None) -> Prepared:
    """Inspect the model, plan the tree, check the machine; starts and creates nothing.

    Raises:
        HybridGenError: the model or the plan cannot be served here.
    """
    if report is not None:
        report.phase("model", config.model.model)
    model = inspect_model(config.model.model, config)
    if report is not None:
        report.phase("plan", model.name)
    supply = placement.read_supply()
    plan = make_plan(config, model, supply, placement.physical_cores())
    preflight.check(plan)
    choice = placement.choose(
        supply,
        [(worker.name, worker.role) for worker in plan.workers],
        is_disabled=config.pools.disable_cpu_affinity,
        is_cpu_device=plan.config.device.device == "cpu",
    )
    return Prepared(plan, choice)


def host_tree(config: Config, report: StartReport, owner: OwnerLine | None = None) -> int:
    """Run a tree until it ends. Call from the main thread.

    Returns:
        The exit code of an orderly end.

    Raises:
        HybridGenError: why it could not start, or gave up.
    """
    log.setup(f"{Role.SUPERVISOR.label}-0", config.server.log_level)
    prepared = prepare(with_gateways(config, is_public=owner is None), report)
    instance = secrets.token_hex(instances.INSTANCE_DIGITS // 2)
    setproctitle.setproctitle(f"hybridgen:{instance}:{Role.SUPERVISOR.label}-0")
    instances.running()  # sweeps what killed trees left
    for name in sweep_stale():
        logger.warning("removed the shared memory %s of a start that was killed", name)
    with _runtime_dir(config, instance) as runtime:
        return TreeHost(prepared, instance, runtime, report, owner).run()


def with_gateways(config: Config, *, is_public: bool) -> Config:
    """Decide what was left open: a tree that one program owns has no door for others."""
    if config.http.num_gateways >= 0:
        return config
    http = msgspec.structs.replace(config.http, num_gateways=int(is_public))
    return msgspec.structs.replace(config, http=http)


@contextlib.contextmanager
def _runtime_dir(config: Config, instance: str) -> Iterator[RuntimeDir]:
    asked = config.server.runtime_dir
    runtime = RuntimeDir.create(Path(asked) if asked else None, instance)
    try:
        instances.register(runtime, instance)
        yield runtime
    finally:
        instances.unregister(instance)
        runtime.remove()


class TreeHost:
    """Builds what a supervisor works with, and tells everybody when the tree is ready."""

    def __init__(
        self,
        prepared: Prepared,
        instance: str,
        runtime: RuntimeDir,
        report: StartReport,
        owner: OwnerLine | None,
    ) -> None:
        self._plan, self._placement = prepared
        self._instance = instance
        self._runtime = runtime
        self._report = report
        self._owner = owner
        self._admin: AdminDesk | None = None

    def run(self) -> int:
        """Start, supervise, take everything down."""
        plan = self._plan
        self._report.phase("memory", preflight.format_bytes(plan.shm_bytes))
        with contextlib.ExitStack() as stack:
            segments = TreeSegments(plan.segments, plan.geometry, int(self._instance, 16))
            stack.callback(segments.close)
            fleet = Fleet(
                plan,
                instance=self._instance,
                runtime_dir=str(self._runtime.path),
                segments=segments,
                placement=self._placement,
                clock=monotonic_s,
            )
            desk_socket = Router([self._runtime.endpoints.admin], Decoder(AdminOrder))
            stack.callback(desk_socket.close)
            self._admin = AdminDesk(
                desk_socket,
                plan,
                fleet=fleet,
                board=segments.board,
                instance=self._instance,
                clock=monotonic_s,
            )
            link = CoschedulerLink(self._runtime.endpoints.workers, monotonic_s)
            stack.callback(link.close)
            _claim_line(segments)
            self._report.phase("processes", f"{len(plan.workers)} to start")
            supervisor = Supervisor(
                plan,
                fleet=fleet,
                segments=segments,
                admin=self._admin,
                link=link,
                listener=self,
                owner=None if self._owner is None else self._owner.socket,
            )
            stack.callback(self._remove_uri_file)
            return supervisor.run()

    # --- the supervisor's listener ---------------------------------------------------------------

    def child_progress(self, name: str, fact: LoadProgress) -> None:
        """Show how far a child is."""
        self._report.progress(name, fact.fraction, fact.phase)

    def child_ready(self, name: str, num_ready: int, num_total: int) -> None:
        """Show that a child is there."""
        self._report.child_ready(name, num_ready, num_total)

    def tree_ready(self) -> None:
        """Print the banner, write the URI file, tell the owner."""
        if self._admin is not None:
            self._report.ready(
                self._plan, self._placement, self._admin.processes(is_ready=True), self._runtime.uri
            )
        uri_file = self._plan.config.server.uri_file
        if uri_file:
            write_atomically(Path(uri_file), f"{self._runtime.uri}\n")
        if self._owner is not None:
            self._owner.tell_ready(self._runtime.uri)

    def _remove_uri_file(self) -> None:
        """An address that leads nowhere misleads; another tree's address is left alone."""
        path = Path(self._plan.config.server.uri_file or os.devnull)
        if path.is_file() and path.read_bytes().strip() == self._runtime.uri.encode():
            path.unlink()


def _claim_line(segments: TreeSegments) -> None:
    line = segments.board.line(0)
    line.claim(Role.SUPERVISOR, 0, 1)
    line.set_state(ProcessState.READY)


def write_atomically(path: Path, text: str) -> None:
    """Whoever reads ``path`` sees all of ``text`` or the file before it.

    What is no regular file (a pipe, a terminal, a link) is written to, not replaced.

    Raises:
        ConfigError: it cannot be written.
    """
    is_replaced = not path.is_symlink() and (path.is_file() or not path.exists())
    draft = path.with_name(f".{path.name}.{os.getpid()}") if is_replaced else path
    try:
        draft.write_text(text, encoding="utf-8")
        if is_replaced:
            draft.replace(path)
    except OSError as error:
        raise ConfigError(
            f"a file cannot be written: {error.strerror}",
            value=str(path),
            remedy="Choose another --uri-file",
        ) from None
