from __future__ import annotations

import io
import logging

import msgspec
import pytest

from hybridgen.launch.banner import StartReport, banner_lines
from hybridgen.launch.placement import Placement
from hybridgen.launch.process_table import print_tree, tree_json
from hybridgen.messages import ProcessInfo, ProcessList, RingFill
from tests.launch.test_plan import plan_of

TREE = ProcessList(
    request_id=b"",
    instance="00c0ffee",
    model="mock",
    device="cpu",
    uptime_s=2.5,
    is_ready=True,
    shm_bytes=1 << 20,
    processes=[
        ProcessInfo(
            name="gpu-0",
            role="gpu",
            index=0,
            pid=4711,
            incarnation=2,
            state="ready",
            restarts=1,
            cpus=[0, 1],
            rss_bytes=1 << 20,
            progress=99,
            progress_age_s=0.25,
            rings=[RingFill("logits", 1, 2)],
            last_exit="killed by SIGKILL",
            counters={"steps": 7},
        )
    ],
)


def test_the_banner_says_what_runs_where_and_how_to_reach_it() -> None:
    plan = plan_of(2)._replace(device_reason="no device is there")
    lines = banner_lines(plan, Placement({}, "shared"), TREE, "hybridgen:///run/x")
    assert any(line.strip() == "auto: no device is there" for line in lines)
    text = "\n".join(lines)
    for word in ("HybridGen", "00c0ffee", "mock", "2048 tokens", "cpu", "/dev/shm", "shared"):
        assert word in text
    assert "gpu-0" in text
    assert "4711" in text
    assert "hybridgen:///run/x" in lines[-2]


def test_control_groups_are_shown_where_there_are_some() -> None:
    tree = msgspec.structs.replace(TREE, cgroup="/sys/fs/cgroup/hybridgen-00c0ffee")
    out = io.StringIO()
    print_tree(tree, "hybridgen:///run/x", out)
    assert "groups in /sys/fs/cgroup/hybridgen-00c0ffee" in out.getvalue()
    assert tree_json(tree, "")["cgroup"] == tree.cgroup
    lines = banner_lines(plan_of(2), Placement({}, "shared"), tree, "")
    assert any(line.split() == ["groups", tree.cgroup] for line in lines)
    out = io.StringIO()
    print_tree(TREE, "", out)
    assert "groups" not in out.getvalue()


def test_progress_is_printed_in_steps_not_in_floods() -> None:
    out = io.StringIO()
    report = StartReport(out, is_quiet=False)
    for percent in range(101):
        report.progress("gpu-0", percent / 100, "weights")
    assert len(out.getvalue().splitlines()) == 5
    assert "100%" in out.getvalue().splitlines()[-1]


def test_phases_are_numbered() -> None:
    out = io.StringIO()
    StartReport(out, is_quiet=False).phase("plan", "mock")
    assert out.getvalue().startswith("[2/5] plan")


def test_a_quiet_report_prints_nothing() -> None:
    out = io.StringIO()
    report = StartReport(out, is_quiet=True)
    report.phase("plan", "mock")
    report.ready(plan_of(2), Placement({}, ""), TREE, "uri")
    assert out.getvalue() == ""


def test_a_logged_report_prints_nothing_itself(caplog: pytest.LogCaptureFixture) -> None:
    out = io.StringIO()
    report = StartReport(out, is_quiet=False, is_logged=True)
    with caplog.at_level(logging.INFO):
        report.phase("plan", "mock")
        report.ready(plan_of(2), Placement({}, ""), TREE, "uri")
    assert out.getvalue() == ""
    assert caplog.messages[0].startswith("[2/5] plan")
    assert all(message == message.strip() != "" for message in caplog.messages)


def test_a_tree_is_printed_in_plain_columns_without_a_terminal() -> None:
    out = io.StringIO()
    print_tree(TREE, "hybridgen:///run/x", out)
    head, columns, row = out.getvalue().splitlines()
    assert head.startswith("hybridgen:///run/x  mock on cpu, ready")
    assert columns.split()[:4] == ["name", "pid", "incarnation", "state"]
    assert row.split()[:6] == ["gpu-0", "4711", "2", "ready", "0-1", "1.0"]
    assert row.split()[7:13] == ["99", "0.2", "s", "logits", "1/2", "1"]
    assert "\x1b" not in out.getvalue()


def test_the_json_form_has_everything_but_the_envelope() -> None:
    facts = tree_json(TREE, "hybridgen:///run/x")
    assert facts["uri"] == "hybridgen:///run/x"
    process = facts["processes"][0]
    assert process["counters"] == {"steps": 7}
    assert process["rings"] == [{"name": "logits", "depth": 1, "capacity": 2}]
    assert process["progress_age_s"] == 0.25
    assert "request_id" not in facts
