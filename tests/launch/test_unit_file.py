"""docs/systemd/hybridgen.service says the same as the code."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from hybridgen.config import ServerSection
from hybridgen.errors import AlreadyRunning, BadModelFile, ConfigError
from hybridgen.launch.cgroup import CONTROLLERS
from hybridgen.launch.config_fields import config_fields
from hybridgen.launch.preflight import WANTED_FILES
from hybridgen.launch.supervisor import DRAIN_SLACK_S, EXIT_GRACE_S

UNIT = Path(__file__).parents[2] / "docs" / "systemd" / "hybridgen.service"


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    """Key → values of the section Service."""
    section = UNIT.read_text().partition("[Service]")[2].partition("[Install]")[0]
    values = defaultdict(list)
    for key, value in re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE):
        values[key].append(value)
    return values


def test_the_tree_tells_the_manager_and_alone_hears_of_a_stop(
    service: dict[str, list[str]],
) -> None:
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert service["KillMode"] == ["mixed"]
    assert int(service["WatchdogSec"][0]) > 0


def test_its_time_limits_are_longer_than_the_trees_own(service: dict[str, list[str]]) -> None:
    defaults = ServerSection()
    stop_s = defaults.drain_timeout_s + DRAIN_SLACK_S + EXIT_GRACE_S
    assert int(service["TimeoutStopSec"][0]) > stop_s
    assert int(service["TimeoutStartSec"][0]) > defaults.start_timeout_s
    assert int(service["LimitNOFILE"][0]) == WANTED_FILES


def test_all_controllers_are_delegated_and_groups_may_be_written(
    service: dict[str, list[str]],
) -> None:
    assert set(service["Delegate"][0].split()) == set(CONTROLLERS)
    assert "ProtectControlGroups" not in service


def test_what_cannot_work_with_a_gpu_is_left_out(service: dict[str, list[str]]) -> None:
    assert not {"PrivateDevices", "MemoryDenyWriteExecute", "ProcSubset"} & set(service)
    assert {"char-nvidia rw", "char-nvidia-uvm rw"} <= set(service["DeviceAllow"])


def test_what_another_start_would_not_mend_is_not_started_again(
    service: dict[str, list[str]],
) -> None:
    codes = set(map(int, service["RestartPreventExitStatus"][0].split()))
    assert {error.exit_code for error in (ConfigError, BadModelFile, AlreadyRunning)} <= codes
    assert service["OOMPolicy"] == ["continue"]


def test_its_command_has_options_that_there_are(service: dict[str, list[str]]) -> None:
    _, command, *options = shlex.split(service["ExecStart"][0])
    flags = {field.flag for field in config_fields().values()} | {"--config"}
    assert command == "serve"
    assert {option for option in options if option.startswith("--")} <= flags
