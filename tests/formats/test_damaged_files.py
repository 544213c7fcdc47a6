"""What can be wrong with a model file, from outside: refused by name, soon, in little memory."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, InvalidRequest, ModelError, WeightsMismatch
from hybridgen.formats.convert import convert_model
from hybridgen.formats.inspect import inspect_model
from hybridgen.request import ChatPrompt
from hybridgen.text.prompt_encoder import build_prompt_encoder
from tests.formats.test_gguf import BAD as BAD_GGUF
from tests.formats.test_safetensors_file import BAD as BAD_SAFETENSORS
from tools.make_tiny_model import TinyModel
from tools.mutate_gguf import with_entries

LIMIT_S = 1.0
LIMIT_KIB = 256 * 1024  # far below 2 GiB, and above what a reader of small files may take
STRING, INT32 = 8, 5
CHAT = ChatPrompt.of([{"role": "user", "content": "hi"}])


@contextmanager
def bounded() -> Iterator[None]:
    """Little time, little memory."""
    before_s = time.process_time()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - before_s < LIMIT_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < LIMIT_KIB


def refusal_of(path: Path) -> ModelError:
    with bounded(), pytest.raises(ModelError) as caught:
        inspect_model(str(path), Config())
    assert caught.value.fields["remedy"]
    return caught.value


@pytest.fixture(scope="module")
def converted(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("converted") / "tiny.hybridgen"
    return convert_model(inspect_model(str(tiny.gguf), Config()), "bfloat16", output)


@pytest.mark.parametrize("name", BAD_GGUF)
def test_gguf(name: str, tmp_path: Path) -> None:
    assert isinstance(refusal_of(BAD_GGUF[name].write(tmp_path)), BadModelFile)


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_hybridgen(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.hybridgen"
    path.write_bytes(BAD_SAFETENSORS[name])
    assert refusal_of(path).fields["field"]


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_safetensors_in_a_folder(name: str, tiny: TinyModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.folder, folder)
    (folder / "model.safetensors").write_bytes(BAD_SAFETENSORS[name])
    assert refusal_of(folder).fields["field"]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.03, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut(
    share: float, tiny: TinyModel, converted: Path, tmp_path: Path
) -> None:
    for source in (tiny.gguf, converted):
        content = source.read_bytes()
        path = tmp_path / source.name
        path.write_bytes(content[: int(share * len(content))])
        refusal = refusal_of(path)
        assert isinstance(refusal, BadModelFile | WeightsMismatch), refusal


def test_merges_that_do_not_fit_the_vocabulary(tiny: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "merges.gguf"
    merges = {"tokenizer.ggml.merges": (STRING, [b"t h", b"th nonsense"])}
    path.write_bytes(with_entries(tiny.gguf.read_bytes(), merges))
    assert refusal_of(path).fields["field"] == "tokenizer.ggml.merges[1]"


@pytest.mark.parametrize(
    "expression",
    [
        "cycler.__init__.__globals__.os.system('touch {}')",
        "''.__class__.__base__.__subclasses__()[-1]('touch {}')",
        "lipsum.__globals__['os'].popen('touch {}').read()",
    ],
)
def test_a_template_that_leaves_its_sandbox(
    expression: str, tiny: TinyModel, tmp_path: Path
) -> None:
    trace = tmp_path / "was-here"
    template = "{{ " + expression.format(trace) + " }}"
    path = tmp_path / "template.gguf"
    changes = {"tokenizer.chat_template": (STRING, template.encode())}
    path.write_bytes(with_entries(tiny.gguf.read_bytes(), changes))
    info = inspect_model(str(path), Config())
    with bounded(), pytest.raises((ModelError, InvalidRequest)):
        build_prompt_encoder(info.tokenizer).encode(CHAT)
    assert not trace.exists()


def test_an_index_of_100_000_levels(tiny: TinyModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.folder, folder)
    (folder / "model.safetensors").unlink()
    deep = "[" * 100_000 + "]" * 100_000
    index = folder / "model.safetensors.index.json"
    index.write_text(f'{{"metadata": {deep}, "weight_map": {{}}}}', encoding="utf-8")
    assert refusal_of(folder).fields["field"] == "content"


def test_a_decoder_of_no_kind(tiny: TinyModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.folder, folder)
    content = json.loads((folder / "tokenizer.json").read_bytes())
    for kind in ([], {}, 5, None):
        content["decoder"] = {"type": kind}
        (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        info = inspect_model(str(folder), Config())
        with bounded(), pytest.raises(ModelError, match=r"decode|joins"):
            build_prompt_encoder(info.tokenizer)


def test_a_token_type_that_is_none(tiny: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "types.gguf"
    num_tokens = len(inspect_model(str(tiny.gguf), Config()).tokenizer.tokens)
    types = {"tokenizer.ggml.token_type": (INT32, [1] * (num_tokens - 1) + [-1])}
    path.write_bytes(with_entries(tiny.gguf.read_bytes(), types))
    info = inspect_model(str(path), Config())
    with bounded(), pytest.raises(BadModelFile) as caught:
        build_prompt_encoder(info.tokenizer)
    assert caught.value.fields["field"] == "tokenizer (token types)"
    assert caught.value.fields["value"] == -1


def test_a_special_token_of_70_000_characters(tiny: TinyModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.folder, folder)
    content = json.loads((folder / "tokenizer.json").read_bytes())
    content["added_tokens"][0]["content"] = "x" * 70_000
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    info = inspect_model(str(folder), Config())
    with bounded(), pytest.raises(BadModelFile, match="impossibly long"):
        build_prompt_encoder(info.tokenizer)
