from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, ConfigError, WeightsMismatch
from hybridgen.formats.convert import convert_model, load_weights, prepare_weights
from hybridgen.formats.convert_rows import unpermute
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from tests.formats.fused import fused
from tests.formats.requantized import requantized
from tools.make_tiny_model import TinyModel, interleaved, make_tiny_model


def inspected(path: Path) -> ModelInfo:
    return inspect_model(str(path), Config())


def assert_equal(found: Mapping[str, torch.Tensor], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        assert torch.equal(found[name], tensor), name


VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"model_type": "qwen2"},
    "one kv head": {"num_key_value_heads": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_layout_gives_the_very_weights(variant: str, tmp_path: Path):
    made = make_tiny_model(tmp_path, **VARIANTS[variant])
    for source in (made.gguf, made.folder):
        path = prepare_weights(inspected(source), "float32", tmp_path / "cache")
        assert_equal(load_weights(path), fused(made.weights))


def test_bfloat16_is_rounded_to_nearest_even(tiny: TinyModel, tmp_path: Path):
    path = prepare_weights(inspected(tiny.gguf), "bfloat16", tmp_path)
    expected = {
        name: torch.from_numpy(values).to(torch.bfloat16)
        for name, values in fused(tiny.weights).items()
    }
    assert_equal(load_weights(path), expected)


def test_unpermute_undoes_the_interleaving():
    rows = np.arange(3 * 8 * 5, dtype=np.float32).reshape(24, 5)
    assert np.array_equal(unpermute(torch.from_numpy(interleaved(rows, 3)), 3).numpy(), rows)
    # By hand: one head of four rows, stored as first, third, second, fourth.
    stored = torch.tensor([[0.0], [2.0], [1.0], [3.0]])
    assert unpermute(stored, 1).ravel().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_stored_elements_are_dequantized(kind: str, tmp_path: Path):
    import gguf
    from gguf.quants import quantize

    made = make_tiny_model(tmp_path, num_hidden_layers=1)
    number = gguf.GGMLQuantizationType[kind]
    path = tmp_path / f"{kind}.gguf"
    expected = requantized(made, path, lambda values: quantize(values, number), number)
    loaded = load_weights(prepare_weights(inspected(path), "float32", tmp_path / "cache"))
    for name, values in expected.items():
        assert np.allclose(loaded[name].numpy(), values, atol=1e-6), name


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4"])
def test_blocks_that_nobody_here_can_write_are_read(kind: str, tmp_path: Path):
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[number]
    rng = np.random.default_rng(0)

    def blocks(values: Any) -> Any:
        shape = (*values.shape[:-1], values.shape[-1] // block_size * block_bytes)
        # Without these bits no half of a scale is infinite or NaN.
        return rng.integers(0, 256, shape, dtype=np.uint8) & 0x3B

    made = make_tiny_model(
        tmp_path, num_hidden_layers=1, hidden_size=256, intermediate_size=256, head_dim=64
    )
    path = tmp_path / f"{kind}.gguf"
    expected = requantized(made, path, blocks, number)
    loaded = load_weights(prepare_weights(inspected(path), "float32", tmp_path / "cache"))
    for name, values in expected.items():
        assert np.array_equal(loaded[name].numpy(), values), name


def test_a_sharded_folder_is_read(tiny: TinyModel, tmp_path: Path):
    from safetensors.numpy import save_file

    folder = shutil.copytree(tiny.folder, tmp_path / "sharded")
    (folder / "model.safetensors").unlink()
    names = sorted(tiny.weights)
    shards = {"model-00001.safetensors": names[:4], "model-00002.safetensors": names[4:]}
    weight_map: dict[str, str] = {}
    for shard, members in shards.items():
        save_file({name: tiny.weights[name] for name in members}, folder / shard)
        weight_map.update(dict.fromkeys(members, shard))
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    path = prepare_weights(inspected(folder), "float32", tmp_path / "cache")
    assert_equal(load_weights(path), fused(tiny.weights))


def test_half_precision_folders_are_read(tiny: TinyModel, tmp_path: Path):
    from safetensors.torch import save_file

    folder = shutil.copytree(tiny.folder, tmp_path / "half")

    def half(weights: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(values).bfloat16() for name, values in weights.items()}

    save_file(half(tiny.weights), folder / "model.safetensors")
    loaded = load_weights(prepare_weights(inspected(folder), "bfloat16", tmp_path / "cache"))
    assert_equal(loaded, half(fused(tiny.weights)))


def test_loaded_weights_are_views_of_the_file(tiny: TinyModel, tmp_path: Path):
    path = prepare_weights(inspected(tiny.gguf), "float32", tmp_path)
    weights = load_weights(path)
    # Data starts on a cache line, so whole-line tensors keep vector loads aligned.
    assert weights["model.embed_tokens.weight"].data_ptr() % 64 == 0
    mapped = [
        range(*(int(end, 16) for end in line.split()[0].split("-")))
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        if line.endswith(str(path))
    ]
    assert mapped
    for name, tensor in weights.items():
        assert any(tensor.data_ptr() in part for part in mapped), name


def test_a_converted_model_is_a_model_of_its_own(tiny: TinyModel, tmp_path: Path):
    folder = shutil.copytree(tiny.folder, tmp_path / "hf")
    output = convert_model(inspected(folder), "bfloat16", tmp_path / "out" / "small.hybridgen")
    shutil.rmtree(folder)
    info = inspected(output)
    assert info.kind == "hybridgen"
    assert info.config == inspected(tiny.folder).config
    assert info.tokenizer.source_file is None
    assert info.tokenizer.content == (tiny.folder / "tokenizer.json").read_bytes()
    assert [path.name for path in output.parent.iterdir()] == ["small.hybridgen"]
    # It is loaded as it is, whatever dtype is wanted.
    assert prepare_weights(info, "float32", tmp_path / "cache") == output.resolve()
    assert not (tmp_path / "cache").exists()


def test_a_prepared_gguf_carries_its_tokenizer(tiny: TinyModel, tmp_path: Path):
    info = inspected(tiny.gguf)
    again = inspected(prepare_weights(info, "float32", tmp_path))
    assert (again.config, again.tokenizer, again.name) == (info.config, info.tokenizer, info.name)


def test_progress_ends_at_one(tiny: TinyModel, tmp_path: Path):
    seen: list[float] = []
    prepare_weights(inspected(tiny.gguf), "float32", tmp_path, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert seen.count(1.0) == 1


def test_elements_that_are_not_finite_are_refused(tmp_path: Path):
    made = make_tiny_model(tmp_path, num_hidden_layers=1)
    content = bytearray(made.gguf.read_bytes())
    content[-8:-4] = b"\x00\x00\xc0\x7f"  # NaN in the last tensor
    made.gguf.write_bytes(content)
    with pytest.raises(BadModelFile, match="not finite"):
        prepare_weights(inspected(made.gguf), "float32", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cached_file_is_used_again(tiny: TinyModel, tmp_path: Path):
    info = inspected(tiny.gguf)
    path = prepare_weights(info, "float32", tmp_path)
    inode = path.stat().st_ino
    assert prepare_weights(info, "float32", tmp_path) == path
    assert path.stat().st_ino == inode
    assert prepare_weights(info, "bfloat16", tmp_path) != path


@pytest.mark.parametrize("damage", ["cut", "longer", "header", "empty", "other dtype"])
def test_a_damaged_cache_entry_is_made_again(damage: str, tiny: TinyModel, tmp_path: Path):
    info = inspected(tiny.gguf)
    path = prepare_weights(info, "float32", tmp_path)
    content = path.read_bytes()
    if damage == "other dtype":
        content = prepare_weights(info, "bfloat16", tmp_path).read_bytes()
    damaged = {
        "cut": content[:-100],
        "longer": content + b"\0",
        "header": content[:100] + b"\xff" + content[101:],
        "empty": b"",
        "other dtype": content,
    }[damage]
    path.write_bytes(damaged)
    assert_equal(load_weights(prepare_weights(info, "float32", tmp_path)), fused(tiny.weights))


def test_a_changed_source_is_converted_again(tmp_path: Path):
    first = make_tiny_model(tmp_path, num_hidden_layers=1, seed=1)
    before = prepare_weights(inspected(first.gguf), "float32", tmp_path / "cache")
    second = make_tiny_model(tmp_path, num_hidden_layers=1, seed=2)
    assert second.gguf == first.gguf
    after = prepare_weights(inspected(second.gguf), "float32", tmp_path / "cache")
    assert after != before
    assert_equal(load_weights(after), fused(second.weights))


def test_two_processes_may_prepare_at_once(tiny: TinyModel, tmp_path: Path):
    program = (
        "import sys; from hybridgen.config import Config;"
        "from hybridgen.formats.inspect import inspect_model;"
        "from hybridgen.formats.convert import load_weights, prepare_weights;"
        "info = inspect_model(sys.argv[1], Config());"
        "[load_weights(prepare_weights(info, 'float32', sys.argv[2])) for _ in range(3)]"
    )
    command = [sys.executable, "-c", program, str(tiny.gguf), str(tmp_path)]
    children = [subprocess.Popen(command) for _ in range(2)]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    (path,) = tmp_path.iterdir()
    assert_equal(load_weights(path), fused(tiny.weights))


def test_no_space_is_a_typed_error_with_numbers(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(_fd: int, _offset: int, _length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match="no space") as caught:
        prepare_weights(inspected(tiny.gguf), "float32", tmp_path / "cache")
    fields = caught.value.fields
    assert int(str(fields["need_bytes"])) > sum(v.nbytes for v in tiny.weights.values())
    assert int(str(fields["have_bytes"])) > 0
    assert "--cache-dir" in str(fields["remedy"])
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_is_no_folder_is_a_typed_error(tiny: TinyModel, tmp_path: Path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="a file stands where a folder is needed"):
        prepare_weights(inspected(tiny.gguf), "float32", tmp_path / "file")


def test_load_weights_refuses_what_is_not_whole(tiny: TinyModel, tmp_path: Path):
    path = prepare_weights(inspected(tiny.gguf), "float32", tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadModelFile):
        load_weights(path)
    with pytest.raises(BadModelFile, match="hybridgen"):
        load_weights(tiny.folder / "model.safetensors")


def test_a_folder_whose_tensor_has_another_shape_is_refused(tiny: TinyModel, tmp_path: Path):
    from safetensors.numpy import save_file

    folder = shutil.copytree(tiny.folder, tmp_path / "bad")
    name = "model.layers.0.self_attn.k_proj.weight"
    wrong = {**tiny.weights, name: np.zeros((8, 64), dtype=np.float32)}
    save_file(wrong, folder / "model.safetensors")
    with pytest.raises(WeightsMismatch) as caught:
        inspected(folder)
    fields = caught.value.fields
    assert (fields["tensor"], fields["value"], fields["limit"]) == (name, "[8, 64]", "[32, 64]")


@pytest.mark.slow
def test_the_demo_weights_are_those_of_the_gguf_package(demo_path: Path, tmp_path: Path):
    import gguf

    loaded = load_weights(prepare_weights(inspected(demo_path), "float32", tmp_path))
    reader = gguf.GGUFReader(demo_path)
    tensors = {item.name: item for item in reader.tensors}
    # Per layer, three tensors became one and two became one.
    assert len(loaded) == len(tensors) - 3 * 30 == 182

    def values(name: str) -> Any:
        return gguf.dequantize(tensors[name].data, tensors[name].tensor_type)

    assert np.array_equal(loaded["model.embed_tokens.weight"].numpy(), values("token_embd.weight"))
    assert np.array_equal(
        loaded["model.layers.29.mlp.down_proj.weight"].numpy(), values("blk.29.ffn_down.weight")
    )
    keys = loaded["model.layers.7.self_attn.qkv_proj.weight"].numpy()[576:768]
    assert np.array_equal(interleaved(keys, 3), values("blk.7.attn_k.weight"))
