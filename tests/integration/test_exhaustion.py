"""Shared memory, descriptors and memory that run out: a typed error, nothing hangs or is left."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hybridgen import SamplingParams
from hybridgen.client import Client
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.running_tree import RunningTree, running_tree
from tests.support.stand_in_processes import StandInTree, child_environment

pytestmark = pytest.mark.slow

EXIT_USAGE, EXIT_INTERNAL = 2, 70
UNSHARE = shutil.which("unshare") or ""


def can_mount() -> bool:
    """A namespace with a /dev/shm of its own may be made here."""
    command = [UNSHARE, "-Urm", "/bin/sh", "-c", "mount -t tmpfs none /dev/shm"]
    return (
        bool(UNSHARE) and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


needs_mount = pytest.mark.skipif(not can_mount(), reason="no user namespaces here")


def serve(folder: Path, *options: str, setup: str) -> subprocess.CompletedProcess[str]:
    """Run `hybridgen serve mock` after the shell commands ``setup``, until it ends."""
    command = [
        *(sys.executable, "-P", "-m", "hybridgen", "serve", "mock"),
        *("--runtime-dir", str(folder / "run"), "--port", str(free_port()), *options),
    ]
    shell = f'{setup}; exec "$@"'
    return subprocess.run(
        [UNSHARE, "-Urm", "/bin/sh", "-c", shell, "sh", *command],
        env=child_environment(XDG_RUNTIME_DIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_mount
@pytest.mark.parametrize("size", ["1M", "8M"])
def test_a_dev_shm_that_is_too_small_is_refused(tmp_path: Path, size: str) -> None:
    done = serve(tmp_path, setup=f"mount -t tmpfs -o size={size} none /dev/shm")
    assert done.returncode == EXIT_INTERNAL
    error = done.stderr[done.stderr.index("error: ") :]
    assert "value: need 3" in error  # MiB
    assert f"limit: have {size[0]}.0 MiB" in error
    assert "--shm-size" in error
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@needs_mount
def test_a_tree_in_a_small_dev_shm_serves_and_waits_for_room_when_it_fills(
    tmp_path: Path,
) -> None:
    command = [
        *(UNSHARE, "-Urm", "/bin/sh", "-c"),
        *('mount -t tmpfs -o size=64M none /dev/shm; exec "$@"', "sh"),
        *(sys.executable, "-P", "-m", "hybridgen", "serve", "mock", "--num-gateways", "0"),
        *("--runtime-dir", str(tmp_path / "run"), "--uri-file", str(tmp_path / "uri")),
        *("--mock-step-us", "20000"),
    ]
    environment = child_environment(XDG_RUNTIME_DIR=str(tmp_path))
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=environment, stderr=errors) as tree,
    ):
        eventually(lambda: (tmp_path / "uri").exists() or tree.poll() is not None, 30.0)
        with Client((tmp_path / "uri").read_text().strip()) as client:
            stream = iter(client.submit("a", SamplingParams(max_tokens=500, min_tokens=500)))
            num_tokens = len(next(stream).token_ids)
            with open(f"/proc/{tree.pid}/root/dev/shm/rest", "wb") as rest:
                fill(rest.fileno())
            gpu = next(p.pid for p in client.ps().processes if p.name == "gpu-0")
            os.kill(gpu, signal.SIGKILL)
            eventually(lambda: "gpu-0: /dev/shm is too small" in log.read_text(), 10.0)
            os.truncate(f"/proc/{tree.pid}/root/dev/shm/rest", 0)
            num_tokens += sum(len(chunk.token_ids) for chunk in stream)
            client.stop()
            tree.wait(20)
    assert num_tokens == 500
    assert tree.returncode == 0
    assert "SIGBUS" not in log.read_text()
    assert "Traceback" not in log.read_text()


def fill(fd: int) -> None:
    """Until the file system takes no more."""
    try:
        while True:
            os.write(fd, bytes(1 << 16))
    except OSError:
        return


def test_a_dev_shm_that_fills_after_the_check_ends_the_start(tmp_path: Path) -> None:
    with StandInTree(tmp_path, HYBRIDGEN_FAULT="segment.create:enospc@3") as tree:
        code, errors = tree.wait_exit()
    assert code == EXIT_INTERNAL
    assert "error: /dev/shm is too small" in errors
    assert not tree.runtime_dir.exists()


def test_too_few_descriptors_are_refused_at_the_start(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with StandInTree(tmp_path) as tree:
        resource.prlimit(tree.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        code, errors = tree.wait_exit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    assert code == EXIT_USAGE
    assert "too few open files are allowed" in errors
    assert not tree.runtime_dir.exists()


@pytest.fixture(scope="module")
def tree() -> Iterator[RunningTree]:
    with running_tree(model="mock", num_samplers=1, mock_step_us=5000) as running:
        yield running


def no_more_files(pid: int) -> None:
    """Let a process open nothing on top of what it has open."""
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    first_free = next(fd for fd in itertools.count() if fd not in used)
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, hard))


def more_files(pid: int) -> None:
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


def finish(tree: RunningTree, num_tokens: int = 30) -> None:
    """A request that is served from beginning to end."""
    parameters = SamplingParams(max_tokens=num_tokens, min_tokens=num_tokens)
    assert sum(len(chunk.token_ids) for chunk in tree.client.submit("x", parameters)) == num_tokens


def test_a_supervisor_without_descriptors_replaces_once_it_has_some(tree: RunningTree) -> None:
    old = tree.pid_of("tokenizer-0")
    # Lower than the descriptors that it holds of its children; enough for poll().
    hard = resource.prlimit(tree.handle.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(tree.handle.pid, resource.RLIMIT_NOFILE, (16, hard))
    os.kill(old, signal.SIGKILL)
    eventually(lambda: tree.state_of("tokenizer-0") == "waiting")  # and it answers meanwhile
    assert not tree.is_up("tokenizer-0")
    more_files(tree.handle.pid)
    tree.wait_replaced("tokenizer-0", old)
    finish(tree)


@pytest.mark.parametrize("limit", ["descriptors", "memory"])
def test_a_sampler_that_cannot_take_a_new_ring_is_replaced(tree: RunningTree, limit: str) -> None:
    sampler = tree.pid_of("sampler-0")
    stream = tree.client.submit("x", SamplingParams(max_tokens=300, min_tokens=300))
    first = next(iter(stream))
    if limit == "descriptors":
        no_more_files(sampler)
    else:
        used = psutil.Process(sampler).memory_info().vms
        resource.prlimit(sampler, resource.RLIMIT_AS, (used, used))
    tree.kill("gpu-0")
    tree.wait_replaced("sampler-0", sampler)
    assert len(first.token_ids) + sum(len(chunk.token_ids) for chunk in stream) == 300


def test_a_coscheduler_without_descriptors_is_replaced_at_the_next_client(
    tree: RunningTree,
) -> None:
    """ZeroMQ ends a process that cannot accept; what it has is served before, and goes on after."""
    coscheduler = tree.pid_of("coscheduler-0")
    finish(tree)
    no_more_files(coscheduler)
    finish(tree)
    stream = tree.client.submit("x", SamplingParams(max_tokens=300, min_tokens=300))
    first = next(iter(stream))
    with Client(tree.handle.uri) as client:
        assert client.generate("y", SamplingParams(max_tokens=3)).token_ids
    tree.wait_replaced("coscheduler-0", coscheduler)
    assert len(first.token_ids) + sum(len(chunk.token_ids) for chunk in stream) == 300
