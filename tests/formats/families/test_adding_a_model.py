"""The worked example of docs/adding-a-model.md works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hybridgen.formats.families import registry
from hybridgen.models.reference import reference_logits
from tests.formats.families.made_model import loaded, made_model, random_ids
from tests.models.tiny_model import relative_error
from tools.tiny_families import TINY_CONFIGS
from tools.tiny_gguf import ARCHITECTURES

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-model.md"


def examples() -> list[str]:
    """The page's Python: the family's file, and its entry for the tests."""
    page = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


@pytest.fixture
def _seed_oss(monkeypatch: pytest.MonkeyPatch) -> None:
    file, entry = examples()
    names: dict[str, Any] = {"TINY_CONFIGS": {}, "ARCHITECTURES": {}}
    for source in (file, entry):
        exec(compile(source, str(PAGE), "exec", dont_inherit=True), names)  # noqa: S102  our own
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, names["SEED_OSS"]))
    monkeypatch.setitem(TINY_CONFIGS, "seed_oss", names["TINY_CONFIGS"]["seed_oss"])
    monkeypatch.setitem(ARCHITECTURES, "seed_oss", names["ARCHITECTURES"]["seed_oss"])


@pytest.mark.usefixtures("_seed_oss")
@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_the_pages_family_equals_transformers(source: str, tmp_path: Path):
    made = made_model(tmp_path, model_type="seed_oss")
    config, tensors = loaded(getattr(made.files, source), tmp_path)
    assert config.architecture == "seed_oss"
    assert config.has_qkv_bias
    assert config.has_output_bias
    ids = random_ids(config.vocab_size, 40)
    assert relative_error(reference_logits(config, tensors, ids), made.logits(ids)) < 1e-5
