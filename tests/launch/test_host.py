from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridgen.errors import ConfigError
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.host import prepare, write_atomically


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "uri"
    for text in ("first\n", "second\n"):
        write_atomically(path, text)
        assert path.read_text() == text
    assert os.listdir(tmp_path) == ["uri"]


def test_what_is_no_regular_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write_atomically(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"
    write_atomically(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()


def test_a_file_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "uri"
    with pytest.raises(ConfigError, match="No such file") as caught:
        write_atomically(path, "text")
    assert caught.value.fields["value"] == str(path)


def test_a_plan_says_which_device_was_chosen_and_why() -> None:
    plan = prepare(config_from_options({"model": "mock"})).plan
    assert plan.config.device.device == "cpu"
    assert plan.device_reason == "the mock model needs no device"
    assert prepare(config_from_options({"model": "mock", "device": "cpu"})).plan.device_reason == ""
