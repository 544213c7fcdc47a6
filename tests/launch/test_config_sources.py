from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridgen.config import Config
from hybridgen.errors import ConfigError
from hybridgen.launch.config_fields import config_fields
from hybridgen.launch.config_sources import config_from_options, resolve


def test_without_sources_everything_is_default() -> None:
    resolved = resolve({}, {})
    assert resolved.config == Config()
    assert set(resolved.sources.values()) == {"default"}
    assert set(resolved.sources) == set(config_fields())


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("max-num-seqs = 1\nprefill-chunk = 16\nbacklog-limit = 7\n")
    environment = {"HYBRIDGEN_MAX_NUM_SEQS": "2", "HYBRIDGEN_PREFILL_CHUNK": "32"}
    resolved = resolve({"max_num_seqs": "3", "model": None}, environment, file)
    scheduler = resolved.config.scheduler
    assert (scheduler.max_num_seqs, scheduler.prefill_chunk, scheduler.backlog_limit) == (3, 32, 7)
    assert resolved.sources["max_num_seqs"] == "flag --max-num-seqs"
    assert resolved.sources["prefill_chunk"] == "environment HYBRIDGEN_PREFILL_CHUNK"
    assert resolved.sources["backlog_limit"] == f"file {file}"
    assert resolved.sources["model"] == "default"


def test_the_file_may_be_json_have_sections_and_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"pools": {"num_samplers": 3}, "disable-cpu-affinity": True}))
    config = resolve({}, {"HYBRIDGEN_CONFIG": str(file)}).config
    assert config.pools.num_samplers == 3
    assert config.pools.disable_cpu_affinity


@pytest.mark.parametrize("word", ["true", "TRUE", "1", "yes", "on"])
def test_switches_are_on_with_any_word_for_true(word: str) -> None:
    assert resolve({"disable_cpu_affinity": word}, {}).config.pools.disable_cpu_affinity


@pytest.mark.parametrize("word", ["false", "0", "no", "off"])
def test_switches_are_off_with_any_word_for_false(word: str) -> None:
    assert not resolve({"disable_cpu_affinity": word}, {}).config.pools.disable_cpu_affinity


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_num_seqs", v) for v in ("0", "-1", "1025", str(2**63), "1e400", "5.5", "x", "")],
        *[("drain_timeout_s", v) for v in ("-1", "nan", "inf", "soon")],
        ("dtype", "int3"),
        ("disable_cpu_affinity", "perhaps"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({name: value}, {})
    fields = caught.value.fields
    assert name.replace("_", "-") in str(caught.value)
    assert fields["value"] == value
    assert fields["limit"]
    assert fields["remedy"]


@pytest.mark.parametrize("text", ['max-num-seqs = "5"', "max-num-seqs = true", "model = 5"])
def test_files_have_real_types(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    if '"5"' in text:  # a number in quotes is understood, as in the environment
        assert resolve({}, {}, file).config.scheduler.max_num_seqs == 5
    else:
        with pytest.raises(ConfigError):
            resolve({}, {}, file)


def test_an_unknown_key_names_its_near_matches(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("max-num-seq = 5")
    with pytest.raises(ConfigError) as caught:
        resolve({}, {}, file)
    assert "max-num-seqs" in str(caught.value.fields["remedy"])
    assert str(file) in str(caught.value)


def test_an_environment_variable_that_is_nearly_an_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="HYBRIDGEN_MAX_NUM_SEQS"):
        resolve({}, {"HYBRIDGEN_MAX_NUM_SEQ": "5"})


@pytest.mark.parametrize("variable", ["HYBRIDGEN_FAULT", "HYBRIDGEN_SOMETHING_ELSE", "OTHER"])
def test_other_variables_are_left_alone(variable: str) -> None:
    assert resolve({}, {variable: "x"}).config == Config()


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", "= 5"), ("a.json", "{"), ("a.json", "[1]"), ("a.json", "[" * 100_000)],
)
def test_a_malformed_file_is_refused(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve({}, {}, file)
    assert caught.value.fields["value"] == str(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve({}, {}, tmp_path / "nothing.toml")


@pytest.mark.parametrize("options", [{"max_num_seqs": 0}, {"modle": "x"}, {"max_num_seqs": None}])
def test_options_from_python_are_checked_too(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        config_from_options(options)


def test_options_from_python_become_a_configuration() -> None:
    config = config_from_options({"model": "mock", "mock_eos_bias": -3.5, "dtype": "float32"})
    assert (config.model.model, config.mock.mock_eos_bias) == ("mock", -3.5)
    assert config.model.dtype == "float32"
