from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.config import Config, ModelSection
from hybridgen.errors import HybridGenError
from hybridgen.formats.inspect import inspect_model
from hybridgen.text.tokenizer import build_tokenizer

CONFIGS = Path(__file__).parents[2] / "tools" / "configs"
CONFIG = Config(model=ModelSection(load_format="dummy"))


@pytest.mark.parametrize(
    ("name", "num_parameters", "kv_bytes"),
    [("llama-13b", 13.0e9, 2 * 40 * 5120 * 2), ("llama-8b", 8.0e9, 2 * 32 * 1024 * 2)],
)
def test_a_shape_is_a_model_with_a_tokenizer_of_its_size(name, num_parameters, kv_bytes):
    info = inspect_model(str(CONFIGS / f"{name}.json"), CONFIG)
    assert (info.kind, info.name) == ("dummy", name)
    assert info.config.num_parameters == pytest.approx(num_parameters, rel=0.01)
    assert info.config.kv_bytes_per_token(2) == kv_bytes
    tokenizer = build_tokenizer(info.tokenizer)
    assert tokenizer.vocab_size == info.config.vocab_size == len(tokenizer.token_bytes)
    assert info.config.eos_ids == info.tokenizer.eos_ids


def test_without_the_option_a_shape_is_no_model():
    with pytest.raises(HybridGenError):
        inspect_model(str(CONFIGS / "llama-8b.json"), Config())
