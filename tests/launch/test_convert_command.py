from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from hybridgen import __main__
from hybridgen.launch.cli import run
from hybridgen.launch.convert_progress import ConvertProgress, progress_line
from tests.support.fake_clock import FakeClock
from tools.make_tiny_model import TinyModel, make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1)


def facts_of(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert run(["inspect", str(path), "--json"]) == 0
    facts: dict[str, object] = json.loads(capsys.readouterr().out)
    return facts


def test_a_model_is_converted_and_told_about(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "x.hybridgen"
    assert run(["convert", str(tiny.gguf), "--output", str(output)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{output}: ")
    assert "convert 100%" in captured.err
    assert facts_of(output, capsys)["weight_types"] == {"BF16": 9}


def test_the_alias_takes_the_line_of_the_first_description(
    tiny: TinyModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "x.hybridgen"
    line = ["gguf2hybridgen", "--input", str(tiny.gguf), "--output", str(output)]
    line += ["--kv-cache-policy", "hybrid", "--cpu-kv-mem", "8GiB"]
    monkeypatch.setattr("sys.argv", line)
    assert __main__.gguf2hybridgen() == 0
    hints = {"kv_cache_policy": "hybrid", "cpu_kv_mem": "8GiB"}
    assert facts_of(output, capsys)["hints"] == hints


def test_json_tells_what_was_made(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "x.hybridgen"
    line = ["convert", str(tiny.folder), "-o", str(output), "--dtype", "float16", "--json"]
    assert run([*line, "--quantize-weights", "8", "--max-num-seqs", "3"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["bytes"] == output.stat().st_size
    assert made["weight_types"].keys() == {"F32", "F16", "I8"}
    assert made["hints"] == {"max_num_seqs": 3}
    # Another dtype of a file of ours: hints are kept, and others may be added.
    again = tmp_path / "y.hybridgen"
    assert run(["convert", str(output), "-o", str(again), "--prefill-chunk", "32", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["weight_types"] == {"F16": 9}
    assert made["hints"] == {"max_num_seqs": 3, "prefill_chunk": 32}


def test_an_output_that_exists_is_kept_without_force(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "x.hybridgen"
    output.write_text("mine", encoding="utf-8")
    assert run(["convert", str(tiny.gguf), "--output", str(output)]) == 2
    assert "--force" in capsys.readouterr().err
    assert output.read_text(encoding="utf-8") == "mine"
    assert run(["convert", str(tiny.gguf), "--output", str(output), "--force"]) == 0
    assert output.stat().st_size > 1000


def test_an_output_that_cannot_be_is_refused_before_torch_is_loaded(
    tiny: TinyModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "hybridgen.formats.convert", None)
    for name in ("x" * 300 + ".hybridgen", "file/x.hybridgen", "folder.hybridgen"):
        (tmp_path / "file").touch()
        (tmp_path / "folder.hybridgen").mkdir(exist_ok=True)
        assert run(["convert", str(tiny.gguf), "-o", str(tmp_path / name), "--force"]) == 2
        assert "the output cannot be written" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 2


def test_a_tokenizer_that_cannot_be_built_is_not_converted(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert run(["convert", str(folder), "-o", str(tmp_path / "x.hybridgen")]) == 65
    assert "tokenizer.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "one source"),
        (["a.gguf", "--input", "b.gguf", "--output", "x.hybridgen"], "one source"),
        (["a.gguf"], "--output"),
        (["a.gguf", "--output", "x.bin"], ".hybridgen"),
        (["a.gguf", "--output", "x.hybridgen", "--dtype", "int3"], "--dtype"),
        (["a.gguf", "--output", "x.hybridgen", "--quantize-weights", "4"], "quantize"),
        (["a.gguf", "--output", "x.hybridgen", "--kv-cache-policy", "x"], "policy"),
        (["a.gguf", "--output", "x.hybridgen", "--kv-cache-policy", "park"], "host memory"),
        (["a.gguf", "--output", "x.hybridgen", "--max-num-seqs", "0"], "max_num_seqs"),
        (["/no/such.gguf", "--output", "x.hybridgen"], "no model is there"),
        (["mock", "--output", "x.hybridgen"], "no weights"),
        (["mock", "--output", "\udcff.hybridgen"], "not UTF-8"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_made(
    arguments: list[str],
    word: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["convert", *arguments]) == 2
    assert word in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_context_that_the_model_lacks_is_no_hint(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["convert", str(tiny.gguf), "-o", str(tmp_path / "x.hybridgen")]
    assert run([*line, "--max-model-len", "513"]) == 2
    assert "limit: 512" in capsys.readouterr().err
    assert run([*line, "--max-model-len", "512"]) == 0


def test_pickled_weights_are_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "consolidated.pt"
    path.write_bytes(b"PK\3\4" + bytes(100))
    assert run(["convert", str(path), "--output", str(tmp_path / "x.hybridgen")]) == 65
    assert "pickle" in capsys.readouterr().err


def test_progress_is_lines_where_there_is_no_terminal() -> None:
    clock, stream = FakeClock(), io.StringIO()
    with ConvertProgress(stream, 10_000_000_000, clock) as progress:
        for share in (0.1, 0.2, 0.5, 1.0):
            clock.advance(4.0)
            progress(share)
    assert stream.getvalue().splitlines() == [
        "convert  20%, 0.25 GB/s, 32 s left",
        "convert 100%, 0.62 GB/s, 16.0 s",
    ]


def test_progress_at_the_very_start_has_no_rate() -> None:
    assert progress_line(0.0, 100, 0.0) == "convert   0%, 0.00 GB/s, 0.0 s"
