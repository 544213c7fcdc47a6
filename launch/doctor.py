"""What a tree needs from any machine, looked at one by one."""

from __future__ import annotations

import enum
import importlib
import importlib.metadata
import os
import platform
import resource
import sys
from collections.abc import Callable

import msgspec
import psutil

from hybridgen.errors import ConfigError
from hybridgen.formats.locate import locate
from hybridgen.ipc.runtime_dir import base_dir
from hybridgen.ipc.segment import SHM_DIR, free_shared_memory
from hybridgen.launch import cgroup, cpu_claims, placement, preflight
from hybridgen.launch.cgroup_fs import CgroupFs, own_group
from hybridgen.launch.device_choice import find_device
from hybridgen.version import __version__

NATIVE_MODULES = ("hybridgen.ipc._native", "hybridgen.sampling._native", "hybridgen.models._native")
PACKAGES = (
    "torch",
    "numpy",
    "pyzmq",
    "posix_ipc",
    "granian",
    "msgspec",
    "typer",
    "tokenizers",
    "gguf",
)
#: Segments of the demo model under the default configuration, rounded up.
WANTED_SHM_BYTES = 64 << 20
WANTED_FILES = 1024
WANTED_MEMORY_BYTES = 2 << 30
MIN_PYTHON = (3, 11)


class Verdict(enum.Enum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One check."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Run all checks; none of them starts or changes anything."""
    checks: list[Callable[[], Finding]] = [
        _python,
        _pidfd,
        _shared_memory,
        _open_files,
        _cpus,
        _claims,
        _control_groups,
        _memory,
        _runtime_dir,
        *[lambda name=name: _native(name) for name in NATIVE_MODULES],
        _packages,
        _device,
        _demo_model,
    ]
    return [check() for check in checks]


def versions() -> dict[str, str]:
    """Versions by name, without importing the heavy ones; ``missing`` where one is not there."""
    found = {"hybridgen": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return {**found, "kernel": platform.release(), "machine": platform.machine()}


def _judge(
    check: str, found: str, *, is_good: bool, remedy: str, is_needed: bool = True
) -> Finding:
    if is_good:
        return Finding(check, Verdict.OK, found)
    return Finding(check, Verdict.FAIL if is_needed else Verdict.WARN, found, remedy)


def _python() -> Finding:
    return _judge(
        "Python",
        platform.python_version(),
        is_good=sys.version_info >= MIN_PYTHON,
        remedy="Use Python 3.11 or newer",
    )


def _pidfd() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
        is_good = True
    except OSError:
        is_good = False
    return _judge(
        "pidfd",
        f"Linux {platform.release()}",
        is_good=is_good,
        remedy="Use Linux 5.3 or newer, and a container that allows pidfd_open",
    )


def _shared_memory() -> Finding:
    free_bytes = free_shared_memory()
    return _judge(
        str(SHM_DIR),
        f"{preflight.format_bytes(free_bytes)} free",
        is_good=free_bytes >= WANTED_SHM_BYTES,
        remedy="Enlarge it (docker: --shm-size=1g)",
    )


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_good = hard == resource.RLIM_INFINITY or hard >= WANTED_FILES
    return _judge(
        "open files",
        f"{soft} (may be raised to {'any number' if hard == resource.RLIM_INFINITY else hard})",
        is_good=is_good,
        remedy=f"Allow at least {WANTED_FILES} (ulimit -Hn, LimitNOFILE=)",
    )


def _cpus() -> Finding:
    supply = placement.read_supply()
    quota = "no quota" if supply.quota is None else f"quota of {supply.quota:g}"
    found = (
        f"{supply.effective} usable: allowed {placement.format_cpus(supply.allowed)}, {quota}, "
        f"{placement.physical_cores()} physical cores"
    )
    remedy = "With one CPU every role waits for every other; allow at least two"
    return _judge("CPUs", found, is_good=supply.effective >= 2, remedy=remedy, is_needed=False)


def _claims() -> Finding:
    claimed = cpu_claims.claimed_by_others(base_dir())
    is_good = not claimed.issuperset(placement.read_supply().allowed)
    found = f"claimed by running trees: {placement.format_cpus(sorted(claimed)) or 'none'}"
    remedy = "Give each tree a budget with --num-cpu-threads"
    return _judge("CPUs of trees", found, is_good=is_good, remedy=remedy, is_needed=False)


def _control_groups() -> Finding:
    found, is_good = cgroup.examine(own_group(), CgroupFs())
    return _judge("control groups", found, is_good=is_good, remedy=cgroup.REMEDY, is_needed=False)


def _memory() -> Finding:
    have_bytes = preflight.available_memory()
    total = preflight.format_bytes(psutil.virtual_memory().total)
    return _judge(
        "memory",
        f"{preflight.format_bytes(have_bytes)} available of {total}",
        is_good=have_bytes >= WANTED_MEMORY_BYTES,
        remedy="The demo model with default options wants about 2 GiB; lower --max-num-seqs",
        is_needed=False,
    )


def _runtime_dir() -> Finding:
    base = base_dir()
    return _judge(
        "runtime directory",
        str(base),
        is_good=os.access(base, os.W_OK | os.X_OK),
        remedy="Set XDG_RUNTIME_DIR to a directory of yours, or use --runtime-dir",
    )


def _native(module: str) -> Finding:
    try:
        importlib.import_module(module)
        found, is_good = "loaded", True
    except ImportError as error:
        found, is_good = str(error), False
    remedy = "Install again with a C compiler at hand: pip install --force-reinstall ."
    return _judge(module, found, is_good=is_good, remedy=remedy)


def _packages() -> Finding:
    found = versions()
    missing = [name for name, version in found.items() if version == "missing"]
    listing = ", ".join(f"{name} {found[name]}" for name in PACKAGES)
    remedy = f"pip install {' '.join(missing)}"
    return _judge("packages", listing, is_good=not missing, remedy=remedy)


def _device() -> Finding:
    choice = find_device()
    return Finding("device auto", Verdict.OK, f"{choice.device}: {choice.reason}")


def _demo_model() -> Finding:
    try:
        found, remedy = str(locate("demo")), ""
    except ConfigError as error:
        found, remedy = error.message, str(error.fields.get("remedy", ""))
    return _judge("demo model", found, is_good=not remedy, remedy=remedy, is_needed=False)
