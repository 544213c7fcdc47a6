from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hybridgen.config import Config, DeviceSection, ModelSection
from hybridgen.errors import BadModelFile, ConfigError, OutOfDeviceMemory
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.launch import dry_run as dry_run_module
from hybridgen.launch.cli import run
from hybridgen.launch.dry_run import dry_run
from hybridgen.launch.model_check import check_model, check_template, check_tokenizer
from hybridgen.text.tokenizer import build_tokenizer
from tests.support.free_port import free_port
from tests.support.stand_in_processes import child_environment
from tools.make_tiny_model import TinyModel, make_tiny_model

GIB = 1 << 30


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def info(tiny: TinyModel) -> ModelInfo:
    return inspect_model(str(tiny.folder), Config())


def with_tokenizer(info: ModelInfo, **changes: object) -> ModelInfo:
    tokenizer = msgspec.structs.replace(info.tokenizer, **changes)
    return msgspec.structs.replace(info, tokenizer=tokenizer)


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_serve_tells_all_that_fits_and_starts_nothing(
    kind: str, tiny: TinyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["serve", str(getattr(tiny, kind)), "--dry-run", "--port", str(free_port())]
    assert run(line) == 0
    out = capsys.readouterr().out
    for word in ("weights", "tokenizer", "template", "memory", "/dev/shm", "http", "is free"):
        assert f"  {word}" in out or word in out
    assert "nothing was started" in out


def test_nothing_is_computed(tiny: TinyModel) -> None:
    code = (
        "import sys; from hybridgen.launch.cli import run;"
        "code = run(['complete', sys.argv[1], '--dry-run']);"
        "sys.exit('torch was loaded' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tiny.gguf)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_tensor_of_another_shape_is_named(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 161}))
    assert run(["serve", str(folder), "--dry-run"]) == 65
    error = capsys.readouterr().err
    assert "mlp.gate_proj.weight" in error
    assert "value: [160, 64]" in error
    assert "limit: [161, 64]" in error


def test_a_damaged_tokenizer_is_named(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"ByteLevel"', '"Sideways"'))
    assert run(["complete", str(folder), "--dry-run"]) == 65
    assert "tokenizer.json" in capsys.readouterr().err


def test_a_text_that_does_not_come_back_is_refused(info: ModelInfo) -> None:
    tokenizer = build_tokenizer(info.tokenizer)
    tokenizer.encode("Hello")
    wrong = inspect_model("mock", Config()).tokenizer
    swapped = msgspec.structs.replace(wrong, tokens=wrong.tokens[::-1])
    with pytest.raises(BadModelFile, match="give a text back") as caught:
        check_tokenizer(info, build_tokenizer(swapped))
    assert "Hello, world!" in str(caught.value.fields["limit"])


def test_a_vocabulary_that_lacks_characters_is_told_of(info: ModelInfo) -> None:
    from hybridgen.text.vocabulary import Vocabulary

    class Ascii:
        vocabulary = Vocabulary([bytes([value]) for value in range(128)])
        vocab_size = 300

        def encode(self, text: str) -> list[int]:
            return list(text.encode("ascii", "ignore"))

        def decode(self, ids: list[int]) -> str:
            return self.vocabulary.decode(ids)

    found = check_tokenizer(info, Ascii())  # type: ignore[arg-type]
    assert "4 of them not wholly" in found
    assert "13 tokens that the model does not know" in found


@pytest.mark.parametrize("template", ["{% for", "{{ raise_exception('no') }}", "{{ 1 / 0 }}"])
def test_a_template_that_does_not_render_is_refused(template: str, info: ModelInfo) -> None:
    with pytest.raises(BadModelFile, match="template"):
        check_template(with_tokenizer(info, chat_template=template), Config())


def test_a_model_without_a_template_says_so(info: ModelInfo) -> None:
    checked = dict(check_model(with_tokenizer(info, chat_template=None), Config()))
    assert "plain texts" in checked["template"]


def test_a_port_that_is_taken_is_found(tiny: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["serve", str(tiny.gguf), "--dry-run", "--port", str(port)]) == 69
    assert "is taken" in capsys.readouterr().err


def test_weights_are_verified_where_that_is_asked_for(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.hybridgen"
    assert run(["convert", str(tiny.gguf), "--output", str(path)]) == 0
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert run(["complete", str(path), "--dry-run"]) == 0
    assert run(["complete", str(path), "--dry-run", "--verify-weights"]) == 65
    assert "lm_head.weight" in capsys.readouterr().err
    assert run(["complete", str(tiny.gguf), "--dry-run", "--verify-weights"]) == 2


def test_the_cache_is_looked_at_where_one_is_needed(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    line = ["complete", str(tiny.gguf), "--dry-run", "--cache-dir"]
    assert run([*line, str(cache)]) == 0
    assert f"{cache}/tiny-bfloat16-" in capsys.readouterr().out
    assert not cache.exists()
    cache.touch()
    assert run([*line, str(cache)]) == 2
    assert "the prepared weights cannot be written" in capsys.readouterr().err
    own = tmp_path / "x.hybridgen"
    assert run(["convert", str(tiny.gguf), "--output", str(own)]) == 0
    assert run(["complete", str(own), "--dry-run", "--cache-dir", str(cache)]) == 0


def test_a_device_is_planned_for(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(model=ModelSection(model=str(tiny.gguf)), device=DeviceSection(device="cuda"))
    stream = io.StringIO()
    monkeypatch.setattr(dry_run_module, "run_probe", lambda: (f"9.0 13.0 {8 * GIB} Some", True))
    dry_run(config, stream, is_public=False)
    assert "KV blocks" in stream.getvalue()
    monkeypatch.setattr(dry_run_module, "run_probe", lambda: (f"9.0 13.0 {GIB} Small", True))
    with pytest.raises(OutOfDeviceMemory):
        dry_run(config, stream, is_public=False)
    monkeypatch.setattr(dry_run_module, "run_probe", lambda: ("no driver", False))
    with pytest.raises(ConfigError, match="no driver"):
        dry_run(config, stream, is_public=False)
