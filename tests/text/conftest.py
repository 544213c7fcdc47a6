from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_tokenizer import tokenizer_spec
from hybridgen.formats.locate import locate
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.text.tokenizer import Tokenizer, build_tokenizer
from tests.text.tiny_sentencepiece import train_sentencepiece

# The same examples in every run, and no time limit on one: the machine may be busy.
settings.register_profile("text", deadline=None, derandomize=True)
settings.load_profile("text")

_FIXTURE = Path(__file__).parents[1] / "fixtures" / "smollm2-greedy.json"


@pytest.fixture(scope="session")
def smollm2_prompts() -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = json.loads(_FIXTURE.read_text())["prompts"]
    return prompts


@pytest.fixture(scope="session")
def smollm2_spec() -> TokenizerSpec:
    with GgufFile(Path(locate("demo"))) as gguf:
        return tokenizer_spec(gguf)


@pytest.fixture(scope="session")
def smollm2(smollm2_spec: TokenizerSpec) -> Tokenizer:
    return build_tokenizer(smollm2_spec)


@pytest.fixture(scope="session")
def sentencepiece_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_sentencepiece(tmp_path_factory.mktemp("sentencepiece"))
