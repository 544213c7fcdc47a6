from __future__ import annotations

import re
from pathlib import Path

import pytest

from hybridgen import fault
from hybridgen.errors import ConfigError
from hybridgen.launch.chaos.scenario import SCENARIOS, Plan, scenario


def test_names_are_unique_and_found() -> None:
    names = [one.name for one in SCENARIOS]
    assert len(set(names)) == len(names)
    assert [scenario(name).name for name in names] == names


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        scenario("kill-samplr")
    assert "kill-sampler" in str(caught.value.fields["remedy"])


def test_faults_of_scenarios_can_be_read_and_only_their_own_plan_has_them() -> None:
    for one in SCENARIOS:
        assert bool(fault.parse(one.fault)) == (one.plan is Plan.FAULT)


def test_every_scenario_is_in_the_failure_model() -> None:
    text = (Path(__file__).parents[3] / "docs" / "failure-model.md").read_text()
    assert {one.name for one in SCENARIOS} <= set(re.findall(r"`([\w-]+)`", text))
