from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest

from hybridgen.config import Config, SchedulerSection
from hybridgen.errors import ConfigError
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.tensor_list import ListedTensor, list_tensors
from hybridgen.launch.cli import run
from hybridgen.launch.model_facts import (
    device_fits,
    format_numbers,
    group_tensors,
    model_facts,
)
from hybridgen.launch.model_tree import Branch, model_tree, plain_lines, print_branch
from tools.make_tiny_model import TinyModel, make_tiny_model

GIB = 1 << 30


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=3)


@pytest.fixture(scope="module")
def info(tiny: TinyModel) -> ModelInfo:
    return inspect_model(str(tiny.folder), Config())


def tensor(name: str, size: int = 4) -> ListedTensor:
    return ListedTensor(name, "F32", (size,), 4 * size)


def test_layers_of_equal_tensors_are_told_once() -> None:
    tensors = [
        tensor("model.embed"),
        *(tensor(f"model.layers.{layer}.a", 4 + (layer == 2)) for layer in range(5)),
        *(tensor(f"model.layers.{layer}.b") for layer in (4, 3, 2, 1, 0)),
    ]
    top, usual, odd = group_tensors(tensors)
    assert (top.title, [item.name for item in top.tensors]) == ("top", ["model.embed"])
    assert (usual.title, usual.num_layers) == ("model.layers.0-1,3-4", 4)
    assert [item.name for item in usual.tensors] == ["a", "b"]
    assert (odd.title, odd.num_layers) == ("model.layers.2", 1)
    assert sum(group.num_bytes for group in (top, usual, odd)) == sum(t.num_bytes for t in tensors)


def test_numbers_in_a_row_are_joined() -> None:
    assert format_numbers([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_every_tensor_of_a_source_is_listed(kind: str, tiny: TinyModel) -> None:
    source = inspect_model(str(getattr(tiny, kind)), Config())
    tensors = list_tensors(source)
    assert len(tensors) == len(tiny.weights)
    assert sum(item.num_bytes for item in tensors) == source.weight_bytes
    groups = group_tensors(tensors)
    assert [group.num_layers for group in groups] == [0, 3]


def test_a_device_is_planned_for_both_widths(info: ModelInfo) -> None:
    whole, half = device_fits(info, Config(), 8 * GIB)
    assert (whole.weight_bits, half.weight_bits) == (16, 8)
    assert whole.fits
    assert half.fits
    assert half.weight_bytes < whole.weight_bytes
    total = whole.weight_bytes + whole.workspace_bytes + whole.reserve_bytes + whole.kv_bytes
    assert total <= 0.9 * 8 * GIB
    assert whole.num_kv_tokens == 16 * whole.num_kv_blocks
    assert whole.num_contexts == pytest.approx(whole.num_kv_tokens / 512, abs=0.01)


def test_more_sequences_leave_less_for_their_cache(info: ModelInfo) -> None:
    few = device_fits(info, Config(scheduler=SchedulerSection(max_num_seqs=1)), 8 * GIB)[0]
    many = device_fits(info, Config(scheduler=SchedulerSection(max_num_seqs=1024)), 8 * GIB)[0]
    assert many.workspace_bytes > few.workspace_bytes
    assert many.num_kv_blocks < few.num_kv_blocks


def test_a_device_that_is_too_small_says_why(info: ModelInfo) -> None:
    fit = device_fits(info, Config(), GIB)[0]
    assert not fit.fits
    assert "does not fit" in fit.plan
    lines = list(plain_lines(model_tree(model_facts(info), [], [fit], "1GiB")))
    assert any("does not fit" in line for line in lines)


def test_lines_are_indented_by_their_depth() -> None:
    tree = Branch("a", [Branch("b", [Branch("c")]), Branch("d")])
    assert list(plain_lines(tree)) == ["a", "  b", "    c", "  d"]


def test_a_terminal_gets_a_drawn_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    print_branch(Branch("model", [Branch("[red]text[/red]")]), stream)
    assert "└── [red]text[/red]" in stream.getvalue()


def test_inspect_prints_the_tree(tiny: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(tiny.gguf), "--device-memory", "4GiB", "-np", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny"
    assert any(line.startswith("    blk.0-2 (3 layers), ") for line in lines)
    assert any("memory of a device with 4GiB" in line for line in lines)
    assert any("whole contexts" in line for line in lines)


def test_inspect_speaks_json(tiny: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(tiny.folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["tensors"]) == len(tiny.weights)
    assert facts["tensors"][0].keys() == {"name", "dtype", "shape", "num_bytes"}
    assert [fit["weight_bits"] for fit in facts["memory"]] == [16, 8]
    assert facts["is_verified"] is False


def test_inspect_verifies(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.hybridgen"
    assert run(["convert", str(tiny.gguf), "--output", str(path)]) == 0
    assert run(["inspect", str(path), "--verify"]) == 0
    assert "every byte" in capsys.readouterr().out
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert run(["inspect", str(path)]) == 0
    assert run(["inspect", str(path), "--verify"]) == 65
    assert "lm_head.weight" in capsys.readouterr().err


def test_inspect_refuses_an_impossible_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "mock", "--device-memory", "lots"]) == 2
    assert "device_memory" in capsys.readouterr().err


def test_facts_name_the_hints(info: ModelInfo) -> None:
    assert model_facts(info)["hints"] == {}
    with pytest.raises(ConfigError):
        msgspec.structs.replace(info.hints, max_num_seqs=0).check()
