"""Control groups over a fake file system with the kernel's rules, and once for real."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hybridgen.client import Client
from hybridgen.errors import ConfigError
from hybridgen.ipc.board import Role
from hybridgen.launch.cgroup import (
    PREFIX,
    ROLE_WEIGHTS,
    GroupLimits,
    TreeGroups,
    examine,
    make_groups,
    sweep,
)
from hybridgen.launch.cgroup_fs import CgroupFs, find_group, own_group
from tests.support.eventually import eventually
from tests.support.fake_cgroup_fs import FakeCgroupFs
from tests.support.stand_in_processes import StandInTree

CPUS = {Role.GPU: [0], Role.SAMPLER: [1, 2], Role.TOKENIZER: []}
NO_LIMITS = GroupLimits()
ME = str(os.getpid())


@pytest.fixture
def above(tmp_path: Path) -> Path:
    return tmp_path / "service"


@pytest.fixture
def fs(above: Path) -> FakeCgroupFs:
    fake = FakeCgroupFs(above)
    fake.write(above, "cgroup.procs", ME)
    return fake


def make(
    above: Path | None, fs: CgroupFs, limits: GroupLimits = NO_LIMITS, *, required: bool = False
) -> TreeGroups | None:
    return make_groups(above, "cafe0123", CPUS, limits, is_required=required, fs=fs)


def must_make(above: Path, fs: CgroupFs, limits: GroupLimits = NO_LIMITS) -> TreeGroups:
    groups = make(above, fs, limits, required=True)
    assert groups is not None
    return groups


def test_each_role_has_a_leaf_with_its_cpus_and_its_weight(above: Path, fs: FakeCgroupFs) -> None:
    groups = must_make(above, fs)
    tree = above / "hybridgen-cafe0123"
    assert groups.path == tree
    assert groups.controllers == ["cpuset", "cpu", "memory"]
    assert (tree / "sampler" / "cpuset.cpus").read_text() == "1-2"
    assert (tree / "gpu" / "cpuset.cpus").read_text() == "0"
    assert (tree / "tokenizer" / "cpuset.cpus").read_text() == ""
    assert (tree / "gpu" / "cpu.weight").read_text() == str(ROLE_WEIGHTS[Role.GPU])
    assert fs.words(tree / "supervisor", "cgroup.procs") == [ME]
    groups.place(4711, Role.GPU)
    assert fs.words(tree / "gpu", "cgroup.procs") == ["4711"]
    groups.remove()


def test_a_stop_leaves_everything_as_it_was(above: Path, fs: FakeCgroupFs) -> None:
    groups = must_make(above, fs)
    groups.place(4711, Role.SAMPLER)
    groups.remove()
    assert fs.words(above, "cgroup.procs") == [ME]
    assert fs.words(above, "cgroup.subtree_control") == []
    assert not [path for path in above.iterdir() if path.is_dir()]


def test_the_last_resort_kills_what_is_in_the_leaves(above: Path, fs: FakeCgroupFs) -> None:
    groups = must_make(above, fs)
    groups.place(4711, Role.GPU)
    groups.kill()
    assert fs.words(groups.path / "gpu", "cgroup.procs") == []
    assert fs.words(groups.path / "supervisor", "cgroup.procs") == [ME]
    groups.remove()


def test_limits_hold_for_the_whole_tree(above: Path, fs: FakeCgroupFs) -> None:
    groups = must_make(above, fs, GroupLimits(cpu_weight=50, memory_max_bytes=1 << 30))
    assert (groups.path / "cpu.weight").read_text() == "50"
    assert (groups.path / "memory.max").read_text() == str(1 << 30)
    groups.remove()


def test_controllers_that_are_missing_are_a_warning(
    above: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FakeCgroupFs(above, "cpu pids")
    groups = make(above, fs)
    assert groups is not None
    assert groups.controllers == ["cpu"]
    assert len(caplog.records) == 1
    assert "has no cpuset controller" in caplog.text
    groups.remove()


def test_with_others_in_the_group_of_the_start_only_the_kill_is_left(
    above: Path, fs: FakeCgroupFs, caplog: pytest.LogCaptureFixture
) -> None:
    fs.write(above, "cgroup.procs", "1")
    groups = make(above, fs)
    assert groups is not None
    assert groups.controllers == []
    assert len(caplog.records) == 1
    assert "other processes are in it" in caplog.text
    groups.remove()
    assert fs.words(above, "cgroup.procs") == ["1", ME]


def test_a_hierarchy_that_may_not_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert make(tmp_path / "nowhere", CgroupFs()) is None
    assert make(None, CgroupFs()) is None
    assert len(caplog.records) == 2
    assert all("bound by affinity alone" in record.message for record in caplog.records)


def test_what_is_required_or_limited_is_refused_where_it_cannot_be(above: Path) -> None:
    fs = FakeCgroupFs(above, "cpu")
    with pytest.raises(ConfigError, match="asked for") as caught:
        make(above, fs, required=True)
    assert "no cpuset controller" in str(caught.value.fields["value"])
    with pytest.raises(ConfigError, match="--cgroup-memory-max"):
        make(above, fs, GroupLimits(memory_max_bytes=1))
    with pytest.raises(ConfigError):
        make(None, fs, GroupLimits(cpu_weight=5))
    assert not [path for path in above.iterdir() if path.is_dir()]


def test_groups_of_a_killed_tree_are_swept_and_those_of_a_live_one_are_not(
    above: Path, fs: FakeCgroupFs
) -> None:
    groups = must_make(above, fs)
    assert sweep(above, fs) == []
    assert groups.path.exists()
    groups.remove()
    dead = above / f"{PREFIX}dead0000"
    for folder in (dead, dead / "supervisor", dead / "gpu"):
        fs.make(folder)
    fs.write(dead / "gpu", "cgroup.procs", "4711")  # outlived its supervisor
    assert sweep(above, fs) == ["dead0000"]
    assert not dead.exists()


def test_the_group_of_a_process_is_found_below_its_mount() -> None:
    mounts = [
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    ]
    unified = Path("/sys/fs/cgroup/unified")
    assert find_group(mounts, ["4:memory:/a", "0::/user/me"]) == unified / "user/me"
    assert find_group(mounts[:2], ["0::/user/me"]) is None
    assert find_group(mounts, ["4:memory:/a"]) is None
    bound = ["41 31 0:38 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw"]
    assert find_group(bound, ["0::/docker/1/x"]) == Path("/sys/fs/cgroup/x")
    assert find_group(bound, ["0::/elsewhere"]) is None


def test_examining_says_what_is_missing(above: Path, fs: FakeCgroupFs, tmp_path: Path) -> None:
    assert examine(None, fs) == ("no cgroup v2 hierarchy is mounted", False)
    assert examine(tmp_path / "nowhere", fs)[0].endswith("may not be written")
    assert examine(above, fs) == (f"{above} may be written, with cpuset, cpu, memory", True)
    fs.write(above, "cgroup.procs", "1")
    assert examine(above, fs)[0].endswith("other processes are in it")
    bare = FakeCgroupFs(tmp_path / "bare", "cpu")
    assert examine(tmp_path / "bare", bare)[0].endswith("has no cpuset, memory")


_HOLD = """
import sys
from hybridgen.ipc.board import Role
from hybridgen.launch.cgroup import GroupLimits, make_groups
from hybridgen.launch.cgroup_fs import CgroupFs, own_group
groups = make_groups(own_group(), sys.argv[1], {Role.GPU: []}, GroupLimits(), is_required=False,
                     fs=CgroupFs())
groups.place(int(sys.argv[2]), Role.GPU)
print("held", flush=True)
if sys.stdin.readline():
    groups.remove()
"""


def _is_writable() -> bool:
    above = own_group()
    return above is not None and os.access(above / "cgroup.procs", os.W_OK)


@pytest.mark.skipif(not _is_writable(), reason="cgroup v2 cannot be written here")
@pytest.mark.parametrize("end", ["stop", "kill -9"])
def test_the_kernel_agrees(end: str) -> None:
    above, fs = own_group(), CgroupFs()
    assert above is not None
    instance = secrets.token_hex(4)
    path = above / f"{PREFIX}{instance}"
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, instance, str(sleeper.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with holder, sleeper:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert fs.words(path / "gpu", "cgroup.procs") == [str(sleeper.pid)]
        assert fs.words(path / "supervisor", "cgroup.procs") == [str(holder.pid)]
        assert instance not in sweep(above, fs)
        if end == "stop":
            holder.stdin.write(b"stop\n")
            holder.stdin.close()
        else:
            holder.kill()
        assert holder.wait(10) in {0, -9}
        eventually(lambda: bool(sweep(above, fs)) or not path.exists())
        assert sleeper.wait(10) == -9  # the last resort, or the sweep
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.skipif(not _is_writable(), reason="cgroup v2 cannot be written here")
def test_a_tree_shows_its_groups_and_removes_them(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        with Client(tree.uri) as client:
            first = Path(client.ps().cgroup)
        assert {leaf.name for leaf in first.iterdir() if leaf.is_dir()} == {
            "supervisor",
            *(role.label for role in ROLE_WEIGHTS),
        }
        assert CgroupFs().words(first / "gpu", "cgroup.procs") == [str(tree.pid_of("gpu-0"))]
        tree.process.send_signal(signal.SIGTERM)
        assert tree.wait_exit()[0] == 0
    assert not first.exists()


@pytest.mark.slow
@pytest.mark.skipif(not _is_writable(), reason="cgroup v2 cannot be written here")
def test_the_next_start_removes_the_groups_of_a_killed_tree(tmp_path: Path) -> None:
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        with Client(tree.uri) as client:
            path = Path(client.ps().cgroup)
        tree.process.kill()
        eventually(lambda: not tree.survivors())
    (tmp_path / "uri").unlink()
    with StandInTree(tmp_path) as tree:
        tree.wait_ready()
        assert not path.exists()
        tree.process.send_signal(signal.SIGTERM)
        assert tree.wait_exit()[0] == 0
