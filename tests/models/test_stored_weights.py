"""INT8 matrices from a file to the engines: as they are on a device, as floats on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hybridgen.config import Config, DeviceSection, ModelSection
from hybridgen.errors import WeightsMismatch
from hybridgen.formats.convert import convert_model, load_weights
from hybridgen.formats.inspect import inspect_model
from hybridgen.models.cuda.int8_rows import dequantize_rows, quantize_rows
from hybridgen.models.cuda.weights import load_device_weights
from hybridgen.models.reference import reference_logits
from hybridgen.models.registry import load_engine
from hybridgen.models.stored_weights import Int8Matrix, StoredWeights
from hybridgen.models.weight_names import LM_HEAD, is_quantized
from hybridgen.models.weights import check_tensors
from tests.models.tiny_model import prompt_logits, random_ids, relative_error
from tools.make_tiny_model import make_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def quantized_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8")
    made = make_tiny_model(folder)
    info = inspect_model(str(made.gguf), Config())
    return convert_model(info, "float32", folder / "x.hybridgen", is_int8=True)


def test_an_int8_matrix_is_what_quantizing_gives(quantized_file: Path, tmp_path: Path):
    info = inspect_model(str(quantized_file), Config())
    plain = make_tiny_model(tmp_path)
    whole = load_weights(
        convert_model(
            inspect_model(str(plain.folder), Config()), "float32", tmp_path / "y.hybridgen"
        )
    )
    stored = load_weights(quantized_file)
    for name, shape in info.config.weight_shapes().items():
        assert (name in stored.int8) == is_quantized(name, shape)
        if name in stored.int8:
            values, scales = torch.empty(shape, dtype=torch.int8), torch.empty(shape[0])
            quantize_rows(whole[name], values, scales)
            assert torch.equal(stored.int8[name].values, values), name
            assert torch.equal(stored.int8[name].scales, scales), name
            assert torch.equal(stored[name], dequantize_rows(values, scales)), name
        else:
            assert torch.equal(stored[name], whole[name]), name


def test_shapes_are_known_without_touching_a_weight():
    broken = torch.empty((2, 3), dtype=torch.int8, device="meta")
    stored = StoredWeights(
        {"a": torch.zeros(4)}, {"b": Int8Matrix(broken, torch.zeros(2))}, torch.float32
    )
    assert stored.shapes == {"a": (4,), "b": (2, 3)}
    assert (list(stored), len(stored), "b" in stored) == (["a", "b"], 2, True)


def test_experts_are_dequantized_row_by_row():
    values = torch.arange(24, dtype=torch.int8).view(2, 3, 4)
    scales = torch.arange(1.0, 7.0).view(2, 3)
    stored = StoredWeights({}, {"e": Int8Matrix(values, scales)}, torch.bfloat16)
    assert torch.equal(stored["e"], (values.float() * scales[..., None]).bfloat16())


def test_a_device_takes_int8_matrices_as_they_are(quantized_file: Path):
    info, stored = inspect_model(str(quantized_file), Config()), load_weights(quantized_file)
    shares: list[float] = []
    device = load_device_weights(
        info.config, stored, torch.bfloat16, CPU, shares.append, is_int8=True
    )
    output = stored.int8["model.layers.0.self_attn.o_proj.weight"]
    assert torch.equal(device.layers[0].output.weight, output.values)
    assert torch.equal(device.layers[0].output.scales, output.scales)
    assert torch.equal(device.lm_head.weight, stored.int8[LM_HEAD].values)
    assert device.embedding.dtype == torch.bfloat16
    assert shares[-1] == 1.0


def test_a_device_that_wants_floats_gets_floats(quantized_file: Path):
    info, stored = inspect_model(str(quantized_file), Config()), load_weights(quantized_file)
    device = load_device_weights(info.config, stored, torch.float32, CPU, lambda _share: None)
    assert device.lm_head.scales is None
    assert torch.equal(device.lm_head.weight, stored[LM_HEAD])


def test_the_cpu_engine_serves_a_quantized_file(quantized_file: Path, tmp_path: Path):
    config = Config(
        model=ModelSection(model=str(quantized_file), dtype="float32", cache_dir=str(tmp_path)),
        device=DeviceSection(num_kv_blocks=8),
    )
    info = inspect_model(str(quantized_file), config)
    engine = load_engine(info, config, lambda _share, _phase: None)
    try:
        ids = random_ids(info.config, 20)
        found = prompt_logits(engine, ids, torch.tensor([2, 1], dtype=torch.int32).numpy())
    finally:
        engine.close()
    stored = load_weights(quantized_file)
    expected = reference_logits(info.config, dict(stored), torch.from_numpy(ids).long())[-1]
    assert relative_error(found, expected) < 1e-5
    assert list(tmp_path.iterdir()) == []  # nothing had to be prepared


def test_a_missing_matrix_is_named(quantized_file: Path):
    info, stored = inspect_model(str(quantized_file), Config()), load_weights(quantized_file)
    less = {name: stored.int8[name] for name in list(stored.int8)[1:]}
    floats = {name: stored[name] for name in stored if name not in stored.int8}
    with pytest.raises(WeightsMismatch, match=next(iter(stored.int8))):
        check_tensors(info.config, StoredWeights(floats, less, torch.float32))
