from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.convert import convert_model
from hybridgen.formats.hybridgen_file import read_hints, read_hybridgen
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.safetensors_file import read_header
from hybridgen.formats.serve_hints import ServeHints
from hybridgen.formats.tokenizer_spec import AddedToken
from hybridgen.text.tokenizer import build_tokenizer
from tests.formats.fused import fused
from tests.text.conftest import train_sentencepiece
from tools.make_tiny_model import TinyModel

SPECIAL = {"kind": "sentencepiece", "vocab_size": 287}


def inspected(path: Path) -> ModelInfo:
    return inspect_model(str(path), Config())


@pytest.fixture
def made(tiny: TinyModel, tmp_path: Path) -> Path:
    return convert_model(inspected(tiny.gguf), "float32", tmp_path / "made.hybridgen")


def edited(path: Path, **metadata: str) -> Path:
    """Change entries of the metadata and leave the rest of the file alone."""
    content = path.read_bytes()
    (num_bytes,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + num_bytes])
    header["__metadata__"] |= metadata
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + num_bytes :])
    return path


def test_the_library_opens_it_and_finds_the_fused_tensors(tiny: TinyModel, made: Path):
    from safetensors import safe_open

    expected = fused(tiny.weights)
    with safe_open(str(made), framework="np") as file:
        assert sorted(file.keys()) == sorted(expected)
        for name, values in expected.items():
            assert np.array_equal(file.get_tensor(name), values), name
        assert (file.metadata()["layout"], file.metadata()["version"]) == ("fused-1", "2")


@pytest.mark.parametrize("source", ["gguf", "folder"])
def test_the_whole_tokenizer_is_inside(source: str, tiny: TinyModel, tmp_path: Path):
    before = inspected(getattr(tiny, source))
    after = inspected(convert_model(before, "bfloat16", tmp_path / "x.hybridgen"))
    assert after.tokenizer.source_file is None
    assert after.tokenizer.chat_template == before.tokenizer.chat_template
    old, new = build_tokenizer(before.tokenizer), build_tokenizer(after.tokenizer)
    text = "Hello, 世界! the<|im_end|>\n\tx"
    assert new.encode(text, allow_special=True) == old.encode(text, allow_special=True)
    assert new.token_bytes == old.token_bytes


def test_a_sentencepiece_model_is_kept_byte_by_byte(tiny: TinyModel, tmp_path: Path):
    sentencepiece_file = train_sentencepiece(tmp_path)
    info = inspected(tiny.folder)
    spec = msgspec.structs.replace(
        info.tokenizer, kind="sentencepiece", source_file=str(sentencepiece_file)
    )
    info = msgspec.structs.replace(info, tokenizer=spec)
    after = inspected(convert_model(info, "bfloat16", tmp_path / "x.hybridgen")).tokenizer
    assert after.content == sentencepiece_file.read_bytes()
    text = "Once upon a time"
    assert build_tokenizer(after).encode(text) == build_tokenizer(spec).encode(text)


def test_what_it_was_made_of_is_told_with_hashes(tiny: TinyModel, tmp_path: Path):
    import hashlib

    path = convert_model(inspected(tiny.folder), "bfloat16", tmp_path / "x.hybridgen")
    source = read_hybridgen(path).source
    assert (source.name, source.format) == (tiny.folder.name, "huggingface")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= source.sha256.keys()
    for name, digest in source.sha256.items():
        assert digest == hashlib.sha256((tiny.folder / name).read_bytes()).hexdigest()


def test_an_unedited_copy_reads_the_same(made: Path):
    before = read_hybridgen(made)
    after = read_hybridgen(edited(made))
    assert after.info == before.info
    assert before.dtype == "float32"


@pytest.mark.parametrize(("key", "value"), [("version", "1"), ("layout", "split-1")])
def test_a_file_of_another_version_says_what_to_do(key: str, value: str, made: Path):
    with pytest.raises(UnsupportedModel, match=f"another {key}") as caught:
        read_hybridgen(edited(made, **{key: value}))
    assert "Convert the model again" in str(caught.value.fields["remedy"])
    with pytest.raises(UnsupportedModel):
        read_hints(made)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "pt"),
        ("dtype", "F64"),
        ("dtype", "BF16"),
        ("quantization", "int4"),
        ("config", "{}"),
        ("config", "not json"),
        ("tokenizer", '{"kind": "wordpiece"}'),
        ("tokenizer", '{"kind": "bpe", "vocab_size": 287, "source_file": "tokenizer.json"}'),
        ("tokenizer", '{"kind": "bpe", "vocab_size": 287, "chat_template": "x"}'),
        ("tokenizer", '{"kind": "bpe", "vocab_size": 287, "content": "*"}'),
        ("tokenizer", '{"kind": "bpe", "vocab_size": 288}'),
        ("tokenizer", '{"kind": "bpe", "vocab_size": 287, "bos_id": 287}'),
        ("tokenizer", json.dumps({"kind": "bpe", "vocab_size": 287, "eos_ids": [1] * 17})),
        ("tokenizer", json.dumps({**SPECIAL, "added_tokens": [{"id": 2**40, "content": "x"}]})),
        ("tokenizer", json.dumps({**SPECIAL, "added_tokens": [{"id": -1, "content": "x"}]})),
        ("chat_template", "x" * (2**20 + 1)),
        ("hints", "{"),
        ("hints", '{"max_num_seqs": 0}'),
        ("hints", '{"max_model_len": 1000000}'),
        ("hints", '{"backlog_limit": 1}'),
        ("hints", '{"kv_cache_policy": "park"}'),
        ("source", '{"shell": "rm"}'),
        ("sha256", "{}"),
        ("sha256", "[]"),
    ],
)
def test_a_bad_entry_is_named(key: str, value: str, made: Path):
    with pytest.raises(BadModelFile) as caught:
        read_hybridgen(edited(made, **{key: value}))
    assert key in str(caught.value.fields["field"])
    assert caught.value.fields["remedy"]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("a\x1b[31mb\n", r"a\x1b[31mb"),
        ("n" * 2**20, "n" * 128),
        (" \t", "made"),
    ],
)
def test_a_name_is_one_short_line(said: str, name: str, made: Path):
    assert inspected(edited(made, name=said)).name == name


def test_a_digest_that_is_none_is_refused(made: Path):
    hashes = json.loads(read_header(made).metadata["sha256"])
    with pytest.raises(BadModelFile, match="sha256"):
        read_hybridgen(edited(made, sha256=json.dumps({**hashes, "lm_head.weight": "00"})))


def test_hints_travel_with_the_model(tiny: TinyModel, tmp_path: Path):
    hints = ServeHints(max_num_seqs=3, kv_cache_policy="park", cpu_kv_mem="8GiB")
    info = msgspec.structs.replace(inspected(tiny.gguf), hints=hints)
    path = convert_model(info, "bfloat16", tmp_path / "x.hybridgen")
    assert read_hints(path) == hints
    assert inspected(path).hints == hints


def test_a_tokenizer_that_no_reader_accepts_is_not_written(tiny: TinyModel, tmp_path: Path):
    info = inspected(tiny.gguf)
    tokenizer = msgspec.structs.replace(info.tokenizer, bos_id=287)
    with pytest.raises(BadModelFile, match=r"tokenizer \(ids\) of tiny\.gguf"):
        convert_model(
            msgspec.structs.replace(info, tokenizer=tokenizer), "bfloat16", tmp_path / "x.hybridgen"
        )
    assert list(tmp_path.iterdir()) == []


def test_tokens_beyond_the_models_are_kept(tiny: TinyModel, tmp_path: Path):
    # Gemma 3's <image_soft_token>: the vocabulary of a model with images has more than 2**18.
    info = inspected(tiny.gguf)
    added = [AddedToken(262_144, "<image_soft_token>", special=True)]
    tokenizer = msgspec.structs.replace(info.tokenizer, added_tokens=added)
    info = msgspec.structs.replace(info, tokenizer=tokenizer)
    path = convert_model(info, "bfloat16", tmp_path / "x.hybridgen")
    assert inspected(path).tokenizer.added_tokens == added


def test_a_header_of_any_length_is_bounded(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from hybridgen.formats import hybridgen_file

    monkeypatch.setattr(hybridgen_file, "MAX_HEADER_BYTES", 1000)
    with pytest.raises(UnsupportedModel, match="too large"):
        convert_model(inspected(tiny.gguf), "bfloat16", tmp_path / "x.hybridgen")
    assert list(tmp_path.iterdir()) == []


def test_a_quantized_file_says_so(tiny: TinyModel, tmp_path: Path):
    path = convert_model(inspected(tiny.gguf), "float16", tmp_path / "x.hybridgen", is_int8=True)
    file = read_hybridgen(path)
    assert (file.is_int8, file.dtype) == (True, "float16")
    tensors: dict[str, Any] = file.header.tensors
    down = "model.layers.0.mlp.down_proj.weight"
    assert (tensors[down].dtype, tensors[down + ".scales"].dtype) == ("I8", "F32")
    assert tensors[down + ".scales"].shape == tensors[down].shape[:1]
    assert tensors["model.embed_tokens.weight"].dtype == "F16"
    assert tensors["model.norm.weight"].dtype == "F16"
