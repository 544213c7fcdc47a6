from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from hybridgen.errors import BadModelFile, UnsupportedModel, WeightsMismatch
from hybridgen.formats.families.registry import gguf_config_of
from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_model import inspect_gguf
from hybridgen.formats.gguf_tokenizer import tokenizer_spec
from hybridgen.models.config import ModelConfig
from tests.formats.gguf_bytes import entry, text
from tools.make_tiny_model import TinyModel, make_tiny_model


class Edited:
    """A read GGUF file whose metadata can be changed before it is interpreted."""

    def __init__(self, gguf: GgufFile, **metadata: Any) -> None:
        self.path = gguf.path
        self.tensors = dict(gguf.tensors)
        renamed = {key.replace("__", "."): value for key, value in metadata.items()}
        merged = {**gguf.metadata, **renamed}
        self.metadata = {key: value for key, value in merged.items() if value is not None}

    def config(self) -> ModelConfig:
        return gguf_config_of(self, 1, [2])  # type: ignore[arg-type]

    def tokenizer(self) -> Any:
        return tokenizer_spec(self)  # type: ignore[arg-type]


def edit(tiny: TinyModel, **metadata: Any) -> Edited:
    with GgufFile(tiny.gguf) as gguf:
        return Edited(gguf, **metadata)


def test_the_demo_model_is_what_it_is_known_to_be(demo_path: Path):
    info = inspect_gguf(demo_path)
    assert info.config == ModelConfig(
        architecture="llama",
        vocab_size=49_152,
        num_layers=30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        rope_base=100_000.0,
        rms_norm_eps=1e-5,
        is_embedding_tied=True,
        bos_id=1,
        eos_ids=[2, 0],
    )
    assert info.weight_types == {"Q4_1": 210, "Q8_0": 1, "F32": 61}
    spec = info.tokenizer
    assert (spec.kind, spec.pre_tokenizer, spec.add_bos) == ("bpe", "smollm", False)
    assert (len(spec.tokens), len(spec.merges), spec.vocab_size) == (49_152, 48_900, 49_152)
    assert spec.tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert spec.chat_template is not None
    assert "You are a helpful AI assistant named SmolLM" in spec.chat_template


def test_gguf_and_folder_describe_the_same_model(tmp_path: Path):
    from hybridgen.formats.huggingface import inspect_folder

    made = make_tiny_model(tmp_path, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    config = inspect_gguf(made.gguf).config
    assert config == inspect_folder(made.folder).config
    assert [config.has_qkv_bias, config.has_output_bias, config.has_mlp_bias] == [True] * 3
    assert config.is_embedding_tied


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("general__architecture", None, "general.architecture"),
        ("llama__block_count", None, "block_count"),
        ("llama__block_count", "two", "block_count"),
        ("llama__block_count", 2**31, "num_layers"),
        ("llama__attention__head_count", 0, "head_count"),
        ("llama__attention__head_count_kv", 3, "num_kv_heads"),
        ("llama__attention__layer_norm_rms_epsilon", float("nan"), "epsilon"),
        ("llama__rope__freq_base", -1.0, "rope_base"),
        ("llama__context_length", 0, "max_position"),
    ],
)
def test_an_impossible_metadata_value_is_named(tiny: TinyModel, key: str, value: Any, named: str):
    with pytest.raises(BadModelFile) as caught:
        edit(tiny, **{key: value}).config()
    assert named in str(caught.value.fields["field"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general__architecture", "gpt2"),
        ("llama__final_logit_softcapping", 30.0),
        ("llama__attention__causal", False),
        ("llama__rope__scaling__yarn_attn_factor", 0.5),
        ("llama__rope__dimension_count", 8),
        ("llama__rope__scaling__type", "longrope"),
        ("llama__attention__head_count", [4, 2]),
        ("llama__logit_scale", 0.5),
    ],
)
def test_a_variant_that_is_not_implemented_is_named(tiny: TinyModel, key: str, value: Any):
    with pytest.raises(UnsupportedModel) as caught:
        edit(tiny, **{key: value}).config()
    named = str(caught.value.fields["field"])
    assert key.replace("__", ".").endswith(named)
    assert "value" in caught.value.fields


def test_rope_scaling_is_read(tiny: TinyModel):
    linear = edit(tiny, llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    scaling = linear.config().rope_scaling
    assert scaling is not None
    assert (scaling.type, scaling.factor) == ("linear", 4.0)
    yarn = edit(
        tiny,
        llama__rope__scaling__type="yarn",
        llama__rope__scaling__factor=4.0,
        llama__rope__scaling__original_context_length=128,
    )
    scaling = yarn.config().rope_scaling
    assert scaling is not None
    assert (scaling.type, scaling.original_max_position) == ("yarn", 128)
    none = edit(tiny, llama__rope__scaling__type="none")
    assert none.config().rope_scaling is None


def test_rope_factors_are_read_from_their_tensor(tiny: TinyModel, tmp_path: Path):
    from gguf import GGUFReader, GGUFWriter
    from gguf.constants import GGUFValueType

    factors = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0]
    reader, path = GGUFReader(tiny.gguf), tmp_path / "factors.gguf"
    writer = GGUFWriter(path, "llama")
    for key, value in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = value.types[0]
        inner = value.types[1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(key, value.contents(), kind, inner)
    for item in reader.tensors:
        writer.add_tensor(item.name, item.data)
    import numpy as np

    writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scaling = inspect_gguf(path).config.rope_scaling
    assert scaling is not None
    assert (scaling.type, scaling.freq_factors) == ("factors", factors)


def tokens_of(tiny: TinyModel, key: str) -> list[Any]:
    with GgufFile(tiny.gguf) as gguf:
        value = gguf.metadata[f"tokenizer.ggml.{key}"]
    assert isinstance(value, list)
    return list(value)


def test_vocabulary_and_merges_must_fit(tiny: TinyModel):
    merges, tokens = tokens_of(tiny, "merges"), tokens_of(tiny, "tokens")
    for bad in ("nosuch token", "t", "", "t h e", "t q"):
        broken = edit(tiny, tokenizer__ggml__merges=[*merges[:3], bad])
        with pytest.raises(BadModelFile) as caught:
            broken.tokenizer()
        assert caught.value.fields["field"] == "tokenizer.ggml.merges[3]"
    with pytest.raises(BadModelFile, match="twice"):
        edit(tiny, tokenizer__ggml__tokens=[*tokens[:-1], tokens[0]]).tokenizer()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", None),
        ("tokens", [1, 2]),
        ("token_type", [1]),
        ("token_type", [1.5] * 287),
        ("merges", None),
        ("merges", [1]),
        ("bos_token_id", 287),
        ("eos_token_id", -1),
        ("add_bos_token", 1),
        ("model", None),
    ],
)
def test_a_bad_tokenizer_key_is_named(tiny: TinyModel, key: str, value: Any):
    with pytest.raises(BadModelFile) as caught:
        edit(tiny, **{f"tokenizer__ggml__{key}": value}).tokenizer()
    assert f"tokenizer.ggml.{key}" in str(caught.value.fields["field"])


def test_another_tokenizer_family_is_unsupported(tiny: TinyModel):
    with pytest.raises(UnsupportedModel, match="bert"):
        edit(tiny, tokenizer__ggml__model="bert").tokenizer()


def test_a_sentencepiece_vocabulary_has_scores_and_its_defaults(tiny: TinyModel):
    tokens = tokens_of(tiny, "tokens")
    scores = [-float(index) for index in range(len(tokens))]
    changes = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__pre": None,
        "tokenizer__ggml__add_bos_token": None,
    }
    spec = edit(tiny, **changes, tokenizer__ggml__scores=scores).tokenizer()
    assert (spec.kind, spec.scores, spec.merges) == ("sentencepiece", scores, [])
    assert (spec.add_bos, spec.add_space_prefix) == (True, True)
    for bad in (None, scores[:-1], [1] * len(tokens)):
        with pytest.raises(BadModelFile, match=r"tokenizer\.ggml\.scores"):
            edit(tiny, **changes, tokenizer__ggml__scores=bad).tokenizer()


def test_a_giant_template_is_refused(tiny: TinyModel):
    with pytest.raises(BadModelFile, match="chat_template"):
        edit(tiny, tokenizer__chat_template="x" * (2**20 + 1)).tokenizer()
    assert edit(tiny, tokenizer__chat_template=None).tokenizer().chat_template is None


def replaced(tiny: TinyModel, folder: Path, old: bytes, new: bytes) -> Path:
    content = tiny.gguf.read_bytes()
    assert content.count(old) == 1
    path = folder / "edited.gguf"
    path.write_bytes(content.replace(old, new))
    return path


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tiny: TinyModel, tmp_path: Path):
    name = b"blk.0.ffn_up.weight"
    old, new = (name + struct.pack("<IQQ", 2, *dims) for dims in ((64, 160), (160, 64)))
    with pytest.raises(WeightsMismatch) as caught:
        inspect_gguf(replaced(tiny, tmp_path, old, new))
    fields = caught.value.fields
    assert fields["tensor"] == "blk.0.ffn_up.weight"
    assert (fields["value"], fields["limit"]) == ("[64, 160]", "[160, 64]")


def test_missing_and_foreign_tensors_are_named(tiny: TinyModel, tmp_path: Path):
    path = replaced(tiny, tmp_path, b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight")
    with pytest.raises(WeightsMismatch, match=r"blk\.0\.ffn_up\.weight is missing"):
        inspect_gguf(path)


def test_a_vocabulary_of_another_length_than_the_embedding_is_refused(
    tiny: TinyModel, tmp_path: Path
):
    name = b"token_embd.weight"
    old, new = (name + struct.pack("<IQQ", 2, 64, rows) for rows in (287, 286))
    with pytest.raises(BadModelFile, match=r"tokenizer\.ggml\.tokens"):
        inspect_gguf(replaced(tiny, tmp_path, old, new))


def test_a_model_in_several_files_is_unsupported(tiny: TinyModel, tmp_path: Path):
    old = entry("general.name", 8, text("tiny"))
    new = entry("split.count", 8, text("parts"))  # as long as the old one: offsets stay right
    with pytest.raises(UnsupportedModel, match="several files"):
        inspect_gguf(replaced(tiny, tmp_path, old, new))
