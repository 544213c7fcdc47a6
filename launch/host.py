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
import psutil
import setproctitle

from hybridgen import fault, log
from hybridgen.clock import monotonic_s
from hybridgen.config import Config
from hybridgen.errors import ConfigError
from hybridgen.formats.inspect import inspect_model, verify_model
from hybridgen.ipc.board import ProcessState, Role
from hybridgen.ipc.channel import Router
from hybridgen.ipc.runtime_dir import RuntimeDir
from hybridgen.ipc.segment import sweep_stale
from hybridgen.launch import cgroup, cpu_claims, instances, placement, preflight
from hybridgen.launch.admin import MAX_FRAME_BYTES, AdminDesk
from hybridgen.launch.banner import StartReport
from hybridgen.launch.cgroup import TreeGroups
from hybridgen.launch.cgroup_fs import CgroupFs, own_group
from hybridgen.launch.coscheduler_link import CoschedulerLink
from hybridgen.launch.device_choice import resolve_device
from hybridgen.launch.fleet import Fleet
from hybridgen.launch.hang_desk import HangDesk
from hybridgen.launch.hang_watch import HangLimits
from hybridgen.launch.http_plan import check_http
from hybridgen.launch.incident import IncidentFolder, default_dir
from hybridgen.launch.listener import Listener, listening
from hybridgen.launch.owner import OwnerLine
from hybridgen.launch.placement import Placement
from hybridgen.launch.plan import TreePlan, make_plan
from hybridgen.launch.segments import TreeSegments
from hybridgen.launch.service_link import ServiceLink
from hybridgen.launch.signals import SignalQueue, StopAsked
from hybridgen.launch.supervisor import Supervisor
from hybridgen.memory_amount import bytes_of
from hybridgen.messages import AdminOrder, Decoder, LoadProgress

logger = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """A plan that passed its checks."""

    plan: TreePlan
    placement: Placement


def prepare(
    config: Config, report: StartReport | None = None, claimed: frozenset[int] = frozenset()
) -> Prepared:
    """Inspect the model, plan the tree, check the machine; starts and creates nothing.

    Args:
        config: as the user gave it.
        report: is told how far it is.
        claimed: CPUs that are other trees'.

    Raises:
        HybridGenError: the model or the plan cannot be served here.
    """
    if report is not None:
        report.phase("model", config.model.model)
    model = inspect_model(config.model.model, config)
    if config.model.verify_weights:
        verify_model(model)
    if report is not None:
        report.phase("plan", model.name)
    supply = placement.read_supply().without(claimed)
    config, reason = resolve_device(config, model.kind)
    plan = make_plan(config, model, supply, placement.physical_cores())
    plan = plan._replace(device_reason=reason)
    preflight.check(plan)
    choice = placement.choose(
        supply,
        [(worker.name, worker.role) for worker in plan.workers],
        is_disabled=config.pools.disable_cpu_affinity,
        is_cpu_device=plan.config.device.device == "cpu",
        max_cpus=_cpu_limit(config, plan),
    )
    return Prepared(plan, choice)


def _cpu_limit(config: Config, plan: TreePlan) -> int | None:
    """CPUs that a tree whose budget was asked for keeps to; None leaves it all there are.

    The gpu process and the gateways come on top of the budget, with a CPU each.
    """
    budget = config.pools.num_cpu_threads
    return budget + 1 + plan.config.http.num_gateways if budget else None


def _prepare_and_claim(config: Config, report: StartReport, runtime: RuntimeDir) -> Prepared:
    """As ``prepare``, with CPUs that no other tree has; again when one took some meanwhile."""
    while True:
        claimed = cpu_claims.claimed_by_others(runtime.path)
        prepared = prepare(config, report, claimed)
        if cpu_claims.claim(runtime.path, prepared.placement.claimed, claimed):
            return prepared


def host_tree(config: Config, report: StartReport, owner: OwnerLine | None = None) -> int:
    """Run a tree until it ends. Call from the main thread.

    Returns:
        The exit code of an orderly end.

    Raises:
        HybridGenError: why it could not start, or gave up.
    """
    with SignalQueue() as signals:
        try:
            return _host_tree(config, report, owner, signals)
        except StopAsked as asked:
            return asked.exit_code


def _host_tree(
    config: Config, report: StartReport, owner: OwnerLine | None, signals: SignalQueue
) -> int:
    server = config.server
    log.setup(f"{Role.SUPERVISOR.label}-0", server.log_level, server.log_format)
    fault.arm(os.environ, Role.SUPERVISOR.label, 1)
    manager = ServiceLink.take_from(os.environ, monotonic_s)
    manager.tell(is_ready=False, is_stopping=False, status="reading the model")
    config = with_gateways(config, is_public=owner is None)
    check_http(config.http)
    instance = secrets.token_hex(instances.INSTANCE_DIGITS // 2)
    setproctitle.setproctitle(f"hybridgen:{instance}:{Role.SUPERVISOR.label}-0")
    instances.running()  # sweeps what killed trees left
    for name in sweep_stale():
        logger.warning("removed the shared memory %s of a start that was killed", name)
    with _runtime_dir(config, instance) as runtime, listening(config.http) as listener:
        with signals.interrupting():
            prepared = _prepare_and_claim(config, report, runtime)
        with _groups(prepared, instance, is_public=owner is None) as groups:
            host = TreeHost(
                prepared,
                listener=listener,
                groups=groups,
                instance=instance,
                runtime=runtime,
                report=report,
                manager=manager if owner is None else ServiceLink.nobody(monotonic_s),
                owner=owner,
            )
            return host.run(signals)


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
        cpu_claims.release(runtime.path)
        runtime.remove()


@contextlib.contextmanager
def _groups(prepared: Prepared, instance: str, *, is_public: bool) -> Iterator[TreeGroups | None]:
    """The tree's control groups, if they are wanted and can be had."""
    pools = prepared.plan.config.pools
    limits = cgroup.GroupLimits(pools.cgroup_cpu_weight, _memory_limit(pools.cgroup_memory_max))
    # A tree that one program owns stays where that program is, unless told otherwise.
    if pools.cgroup == "false" or (pools.cgroup == "auto" and not is_public and not any(limits)):
        yield None
        return
    fs, above = CgroupFs(), own_group()
    for name in cgroup.sweep(above, fs) if above is not None else ():
        logger.warning("removed the control groups of tree %s, which was killed", name)
    roles = dict.fromkeys(worker.role for worker in prepared.plan.workers)
    cpus = {role: prepared.placement.cpus_of(role) for role in roles}
    groups = cgroup.make_groups(
        above, instance, cpus, limits, is_required=pools.cgroup == "true", fs=fs
    )
    try:
        yield groups
    finally:
        if groups is not None:
            groups.remove()


def _memory_limit(amount: float | str) -> int:
    if str(amount) in {"0", "0.0"}:
        return 0
    return bytes_of(amount, psutil.virtual_memory().total, name="cgroup_memory_max")


class TreeHost:
    """Builds what a supervisor works with, and tells everybody when the tree is ready."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        listener: Listener | None,
        groups: TreeGroups | None,
        instance: str,
        runtime: RuntimeDir,
        report: StartReport,
        manager: ServiceLink,
        owner: OwnerLine | None,
    ) -> None:
        self._plan, self._placement = prepared
        self._listener = listener
        self._groups = groups
        self._instance = instance
        self._runtime = runtime
        self._report = report
        self._manager = manager
        self._owner = owner
        self._admin: AdminDesk | None = None

    def run(self, signals: SignalQueue) -> int:
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
                groups=self._groups,
                listener=self._listener,
                clock=monotonic_s,
            )
            desk_socket = Router(
                [self._runtime.endpoints.admin],
                Decoder(AdminOrder),
                max_frame_bytes=MAX_FRAME_BYTES,
            )
            stack.callback(desk_socket.close)
            self._admin = AdminDesk(
                desk_socket,
                plan,
                fleet=fleet,
                board=segments.board,
                instance=self._instance,
                cgroup="" if self._groups is None else str(self._groups.path),
                clock=monotonic_s,
            )
            link = CoschedulerLink(self._runtime.endpoints.workers, monotonic_s)
            stack.callback(link.close)
            hangs = HangDesk(
                HangLimits.of(plan.config.server),
                fleet=fleet,
                board=segments.board,
                incidents=IncidentFolder(Path(plan.config.server.incident_dir or default_dir())),
                instance=self._instance,
                clock=monotonic_s,
            )
            _claim_line(segments)
            self._report.phase("processes", f"{len(plan.workers)} to start")
            supervisor = Supervisor(
                plan,
                fleet=fleet,
                segments=segments,
                admin=self._admin,
                link=link,
                hangs=hangs,
                listener=self,
                manager=self._manager,
                owner=None if self._owner is None else self._owner.socket,
            )
            stack.callback(self._remove_uri_file)
            signals.check()
            return supervisor.run(signals)

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
