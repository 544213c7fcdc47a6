"""What a .hybridgen file advises: behind every other source, before the default."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, ConfigError
from hybridgen.formats.convert import convert_model
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.serve_hints import ServeHints
from hybridgen.launch.cli import run
from hybridgen.launch.config_sources import config_from_options, resolve
from tools.make_tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hints")
    info = inspect_model(str(make_tiny_model(folder, num_hidden_layers=1).gguf), Config())
    hints = ServeHints(
        max_num_seqs=7, prefill_chunk=32, max_model_len=99, kv_cache_policy="park", cpu_kv_mem="1GB"
    )
    info = msgspec.structs.replace(info, hints=hints)
    return convert_model(info, "bfloat16", folder / "x.hybridgen")


def test_a_hint_counts_before_the_default_and_names_its_source(model: Path) -> None:
    resolved = resolve({"model": str(model)}, {})
    assert resolved.config.scheduler.max_num_seqs == 7
    assert resolved.config.scheduler.prefill_chunk == 32
    assert resolved.config.model.max_model_len == 99
    assert resolved.sources["max_num_seqs"] == "model x.hybridgen"
    assert resolved.sources["backlog_limit"] == "default"


def test_every_other_source_counts_before_a_hint(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'model = "{model}"\nprefill-chunk = 64\nmax-model-len = 50\nmax-num-seqs = 1')
    environment = {"HYBRIDGEN_MAX_MODEL_LEN": "60", "HYBRIDGEN_MAX_NUM_SEQS": "2"}
    resolved = resolve({"max_num_seqs": "3"}, environment, file)
    assert resolved.config.scheduler.max_num_seqs == 3
    assert resolved.config.model.max_model_len == 60
    assert resolved.config.scheduler.prefill_chunk == 64
    assert "hybridgen" not in resolved.sources["max_num_seqs"]


def test_a_program_gets_the_hints_too(model: Path) -> None:
    assert config_from_options({"model": str(model)}).scheduler.max_num_seqs == 7
    options = {"model": str(model), "max_num_seqs": 5}
    assert config_from_options(options).scheduler.max_num_seqs == 5


def test_config_show_prints_the_source(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--json", "--model", str(model)]) == 0
    shown = {entry["key"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert shown["max-num-seqs"] == {
        "key": "max-num-seqs",
        "value": 7,
        "source": "model x.hybridgen",
    }


def test_a_model_that_is_not_there_is_no_matter_of_hints(tmp_path: Path) -> None:
    resolved = resolve({"model": str(tmp_path / "gone.hybridgen")}, {})
    assert resolved.sources["max_num_seqs"] == "default"


def test_a_damaged_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.hybridgen"
    path.write_bytes(b"no model")
    with pytest.raises(BadModelFile):
        resolve({"model": str(path)}, {})


@pytest.mark.parametrize(
    ("hints", "named"),
    [
        (ServeHints(max_num_seqs=0), "max_num_seqs"),
        (ServeHints(prefill_chunk=100_000), "prefill_chunk"),
        (ServeHints(max_model_len=-1), "max_model_len"),
        (ServeHints(cpu_kv_mem="much"), "cpu_kv_mem"),
        (ServeHints(cpu_kv_mem="50%"), "cpu_kv_mem"),
        (ServeHints(kv_cache_policy="hybrid"), "host memory"),
    ],
)
def test_a_hint_out_of_its_bounds_is_named(hints: ServeHints, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        hints.check()
    assert caught.value.fields["remedy"]
