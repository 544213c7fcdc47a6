from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hybridgen.ipc.board import Role
from hybridgen.launch.placement import (
    CpuSupply,
    apply,
    choose,
    format_cpus,
    parse_cpus,
    read_quota,
    read_supply,
)

WORKERS = [
    ("coscheduler-0", Role.COSCHEDULER),
    ("gpu-0", Role.GPU),
    ("sampler-0", Role.SAMPLER),
    ("sampler-1", Role.SAMPLER),
    ("tokenizer-0", Role.TOKENIZER),
    ("detokenizer-0", Role.DETOKENIZER),
]


def supply(num_cpus: int) -> CpuSupply:
    return CpuSupply(tuple(range(10, 10 + num_cpus)), None)


@pytest.mark.parametrize("num_cpus", [1, 2, 4])
def test_few_cpus_are_shared_by_all(num_cpus: int) -> None:
    placement = choose(supply(num_cpus), WORKERS, is_disabled=False, is_cpu_device=False)
    assert set(map(tuple, placement.cpus.values())) == {()}


def test_feeder_and_samplers_get_cpus_of_their_own() -> None:
    placement = choose(supply(8), WORKERS, is_disabled=False, is_cpu_device=False)
    own = [placement.cpus[name] for name in ("gpu-0", "sampler-0", "sampler-1")]
    assert own == [[10], [11], [12]]
    assert placement.cpus["tokenizer-0"] == [13, 14, 15, 16, 17]
    assert placement.cpus["coscheduler-0"] == placement.cpus["detokenizer-0"]


def test_two_cpus_are_left_for_everybody_else() -> None:
    many = [("gpu-0", Role.GPU), *((f"sampler-{i}", Role.SAMPLER) for i in range(30))]
    placement = choose(supply(6), many, is_disabled=False, is_cpu_device=False)
    shared = [cpus for cpus in placement.cpus.values() if len(cpus) > 1]
    assert len(shared) == 27
    assert set(map(tuple, shared)) == {(14, 15)}


@pytest.mark.parametrize(("is_disabled", "is_cpu_device"), [(True, False), (False, True)])
def test_nothing_is_pinned_when_disabled_or_when_the_cpu_is_the_device(
    is_disabled: bool, is_cpu_device: bool
) -> None:
    placement = choose(supply(16), WORKERS, is_disabled=is_disabled, is_cpu_device=is_cpu_device)
    assert not any(placement.cpus.values())


def test_only_allowed_cpus_are_given_out() -> None:
    allowed = (1, 3, 5, 7, 9, 11)
    placement = choose(CpuSupply(allowed, None), WORKERS, is_disabled=False, is_cpu_device=False)
    assert {cpu for cpus in placement.cpus.values() for cpu in cpus} <= set(allowed)


@pytest.mark.parametrize(
    ("num_cpus", "quota", "effective"), [(8, None, 8), (8, 2.5, 2), (2, 64.0, 2), (8, 0.5, 1)]
)
def test_the_quota_bounds_the_cpus(num_cpus: int, quota: float | None, effective: int) -> None:
    assert CpuSupply(tuple(range(num_cpus)), quota).effective == effective


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tightest_quota_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    write(tmp_path / "a/b/cpu.max", "max 100000\n")
    write(tmp_path / "a/cpu.max", "250000 100000\n")
    write(tmp_path / "cpu.max", "800000 100000\n")
    assert read_quota(tmp_path, "0::/a/b\n") == 2.5


def test_version_1_quotas_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "cpu,cpuacct" / "docker"
    write(folder / "cpu.cfs_quota_us", "150000\n")
    write(folder / "cpu.cfs_period_us", "100000\n")
    assert read_quota(tmp_path, "4:memory:/x\n1:cpu,cpuacct:/docker\n") == 1.5


def test_no_quota_is_none(tmp_path: Path) -> None:
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert read_quota(tmp_path, "1:cpu:/\n0::/\n") is None


def test_the_supply_is_within_the_affinity_mask() -> None:
    assert set(read_supply().allowed) == os.sched_getaffinity(0)


def test_apply_binds_a_process() -> None:
    cpu = min(os.sched_getaffinity(0))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        apply(child.pid, "child", [cpu])
        assert psutil.Process(child.pid).cpu_affinity() == [cpu]
    finally:
        child.communicate(b"\n")


def test_apply_warns_when_the_kernel_refuses(caplog: pytest.LogCaptureFixture) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        apply(child.pid, "child", [100_000])
    finally:
        child.communicate(b"\n")
    assert "child is not pinned to CPUs 100000" in caplog.text


@pytest.mark.parametrize(
    ("cpus", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([5, 0, 1, 7, 8], "0-1,5,7-8")],
)
def test_cpus_are_written_as_ranges(cpus: list[int], text: str) -> None:
    assert format_cpus(cpus) == text


def test_cpus_that_other_trees_claimed_are_left_to_them() -> None:
    left = supply(16).without({10, 11, 12})
    placement = choose(left, WORKERS, is_disabled=False, is_cpu_device=False)
    assert placement.cpus["gpu-0"] == [13]
    assert not {10, 11, 12} & {cpu for cpus in placement.cpus.values() for cpu in cpus}
    assert placement.claimed == (13, 14, 15)


@pytest.mark.parametrize("is_cpu_device", [True, False])
def test_processes_that_share_keep_off_the_claimed_cpus_too(is_cpu_device: bool) -> None:
    left = supply(8).without(range(10, 15))
    placement = choose(left, WORKERS, is_disabled=False, is_cpu_device=is_cpu_device)
    assert set(map(tuple, placement.cpus.values())) == {(15, 16, 17)}
    assert placement.claimed == ()


def test_a_machine_that_is_claimed_as_a_whole_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    left = supply(8).without(range(100))
    assert left == supply(8)
    assert "claimed all CPUs" in caplog.text


def test_a_tree_with_a_budget_keeps_to_it_and_claims_it() -> None:
    first = choose(supply(16), WORKERS, is_disabled=False, is_cpu_device=False, max_cpus=6)
    assert first.claimed == tuple(range(10, 16))
    assert first.cpus["tokenizer-0"] == [13, 14, 15]
    left = supply(16).without(first.claimed)
    second = choose(left, WORKERS, is_disabled=False, is_cpu_device=False, max_cpus=6)
    assert second.claimed == tuple(range(16, 22))


def test_the_gpu_process_may_read_weights_on_cpus_that_are_nobodys_own() -> None:
    placement = choose(supply(8), WORKERS, is_disabled=False, is_cpu_device=False)
    assert placement.cpus_of(Role.SAMPLER) == [11, 12]
    assert placement.cpus_of(Role.GPU) == [10, 13, 14, 15, 16, 17]
    assert placement.cpus_of(Role.TOKENIZER) == [13, 14, 15, 16, 17]


def test_cpus_are_read_as_they_are_written() -> None:
    for cpus in ([], [3], [0, 1, 2, 5, 7, 8]):
        assert parse_cpus(format_cpus(cpus)) == cpus
    with pytest.raises(ValueError, match="all"):
        parse_cpus("all")
