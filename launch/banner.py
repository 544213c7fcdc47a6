"""What `hybridgen serve` prints while it starts and when it is ready; plain text, to any stream."""

from __future__ import annotations

import logging
from typing import TextIO

from hybridgen.config import MAX_MODEL_LEN
from hybridgen.ipc.segment import SHM_DIR, free_shared_memory
from hybridgen.launch.http_plan import curl_line, http_url
from hybridgen.launch.placement import Placement, format_cpus
from hybridgen.launch.plan import TreePlan
from hybridgen.launch.preflight import format_bytes
from hybridgen.messages import ProcessList
from hybridgen.version import __version__

logger = logging.getLogger(__name__)

PHASES = ("model", "plan", "memory", "processes", "ready")
#: Progress of a load is printed in steps of this, a line each.
PROGRESS_STEP = 0.25


class StartReport:
    """Prints the start; says nothing when ``is_quiet``.

    Args:
        stream: usually standard error.
        is_quiet: for trees that a program starts for itself.
        is_logged: its lines are records of the log, for standard errors that programs read.
    """

    def __init__(self, stream: TextIO, *, is_quiet: bool, is_logged: bool = False) -> None:
        self._stream = stream
        self._is_quiet = is_quiet
        self._is_logged = is_logged
        self._printed_progress: dict[str, tuple[str, float]] = {}

    def phase(self, name: str, detail: str) -> None:
        """Begin one of ``PHASES``."""
        number = PHASES.index(name) + 1
        self._print(f"[{number}/{len(PHASES)}] {name:<10} {detail}")

    def progress(self, child: str, fraction: float, phase: str) -> None:
        """A child is this far in what it calls ``phase``."""
        last_phase, last = self._printed_progress.get(child, ("", -1.0))
        if phase == last_phase and fraction < min(1.0, last + PROGRESS_STEP):
            return
        self._printed_progress[child] = (phase, fraction)
        self._print(f"      {child}: {phase} {fraction:.0%}")

    def child_ready(self, child: str, num_ready: int, num_total: int) -> None:
        """A child is there."""
        self._print(f"      {child} ready ({num_ready} of {num_total})")

    def ready(self, plan: TreePlan, placement: Placement, tree: ProcessList, uri: str) -> None:
        """Everything is there: the banner."""
        self.phase("ready", f"after {tree.uptime_s:.1f} s")
        self._print("")
        for line in banner_lines(plan, placement, tree, uri):
            self._print(line)

    def _print(self, line: str) -> None:
        if self._is_quiet:
            return
        if not self._is_logged:
            print(line, file=self._stream, flush=True)
        elif line:
            logger.info("%s", line.strip())


def banner_lines(plan: TreePlan, placement: Placement, tree: ProcessList, uri: str) -> list[str]:
    """The banner: version, model, context, device, memory plan, process tree, address."""
    lines = [f"HybridGen {__version__}, instance {tree.instance}"]
    lines += plan_lines(plan, placement)
    if tree.cgroup:
        lines.append(_line("groups", tree.cgroup))
    lines.append(_line("processes", f"{'name':<16} {'pid':>8} {'memory':>10}  CPUs"))
    for process in tree.processes:
        cpus, memory = format_cpus(process.cpus), format_bytes(process.rss_bytes)
        lines.append(_line("", f"{process.name:<16} {process.pid:>8} {memory:>10}  {cpus}"))
    lines += [_line("address", uri), _line("try", f'hybridgen chat --uri "{uri}"')]
    return [*lines, *http_lines(plan)]


def http_lines(plan: TreePlan) -> list[str]:
    """Where the gateway answers, whether it asks for a key, and a command that proves it."""
    http = plan.config.http
    if not http.num_gateways:
        return []
    name = plan.config.model.served_model_name or plan.model.name
    key = f"key needed ({http.api_key_file})" if http.api_key_file else "no key needed"
    place = f" over {http.uds}" if http.uds else ""
    lines = [_line("http", f"{http_url(http)}/v1{place}, {key}"), _line("", curl_line(http, name))]
    if http.console and not http.uds:
        lines.append(_line("console", f"{http_url(http)}/"))
    return lines


def plan_lines(plan: TreePlan, placement: Placement) -> list[str]:
    """What a plan comes to, before or after it runs."""
    config = plan.config
    name = config.model.served_model_name or plan.model.name
    scheduler = config.scheduler
    segments = ", ".join(f"{s.name} {format_bytes(s.size_bytes)}" for s in plan.segments)
    return [
        _line("model", f"{name} ({plan.model_path}, {config.model.dtype})"),
        _line(
            "context",
            f"{context_text(plan)}, {scheduler.max_num_seqs} at once, "
            f"{scheduler.backlog_limit} queued",
        ),
        _line(
            "device",
            f"{config.device.device}, {config.device.num_compute_threads} threads; "
            f"{plan.num_cpu_threads} of {plan.supply.effective} CPUs for the CPU roles",
        ),
        *[_line("", f"auto: {reason}") for reason in [plan.device_reason] if reason],
        _line("placement", placement.note),
        _line(
            "KV cache",
            f"{plan.num_kv_blocks} blocks of {config.device.block_size} tokens, "
            f"{format_bytes(plan.kv_cache_bytes)}"
            if plan.num_kv_blocks
            else f"as many blocks of {config.device.block_size} tokens as the device has room for",
        ),
        _line(
            str(SHM_DIR),
            f"{format_bytes(plan.shm_bytes)}: {segments}; "
            f"{format_bytes(free_shared_memory())} free",
        ),
    ]


def context_text(plan: TreePlan) -> str:
    """``8192 tokens``, and where that is the limit of a longer model, how long the model's is."""
    served, own = plan.config.model.max_model_len, plan.model.config.max_position
    if served == MAX_MODEL_LEN < own:
        return f"{served} tokens, the most that is served of the model's own {own}"
    return f"{served} tokens"


def _line(label: str, text: str) -> str:
    return f"  {label:<10} {text}"
