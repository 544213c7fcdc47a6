from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hybridgen.config import (
    Config,
    DeviceSection,
    MockSection,
    ModelSection,
    SchedulerSection,
)
from hybridgen.formats.mock_model import mock_model
from hybridgen.models.mock import MockEngine
from hybridgen.models.registry import load_engine


def ignore_progress(fraction: float, phase: str) -> None:
    assert 0 <= fraction <= 1
    assert phase


def mock_config(**device: object) -> Config:
    return Config(model=ModelSection(model="mock"), device=DeviceSection(**device))


def test_the_mock_model_gets_the_mock_engine():
    config = mock_config(num_kv_blocks=9)
    engine = load_engine(mock_model(config), config, ignore_progress)
    assert isinstance(engine, MockEngine)
    assert (engine.num_blocks, engine.block_size, engine.vocab_size) == (9, 16, 512)


def test_without_a_number_the_mock_has_blocks_for_usual_loads():
    config = Config(
        model=ModelSection(model="mock"),
        scheduler=SchedulerSection(max_num_seqs=2),
        mock=MockSection(mock_max_model_len=4096),
    )
    assert load_engine(mock_model(config), config, ignore_progress).num_blocks == 4096 // 16


def test_the_mock_engine_does_not_import_torch():
    code = (
        "import sys; import hybridgen.models.registry, hybridgen.models.mock;"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hybridgen_file_is_loaded_end_to_end(tmp_path, dtype):
    import torch

    from hybridgen.formats.inspect import inspect_model
    from hybridgen.models.reference import reference_logits
    from tests.models.peer_models import llama_peer
    from tests.models.tiny_model import prompt_logits, random_ids, relative_error, tiny_config

    shape = tiny_config(is_embedding_tied=False)
    peer = llama_peer(shape)
    peer.model.bfloat16().save_pretrained(tmp_path)
    tensors = {name: tensor.bfloat16().float() for name, tensor in peer.tensors.items()}
    (tmp_path / "tokenizer.json").write_text(_word_tokenizer(shape.vocab_size))
    config = Config(
        model=ModelSection(model=str(tmp_path), dtype=dtype, cache_dir=str(tmp_path / "cache")),
        device=DeviceSection(num_kv_blocks=8),
    )
    info = inspect_model(str(tmp_path), config)
    seen: list[float] = []
    engine = load_engine(info, config, lambda fraction, _phase: seen.append(fraction))
    ids = random_ids(shape, 30)
    found = prompt_logits(engine, ids, np.array([3, 1], np.int32))
    expected = reference_logits(shape, tensors, torch.from_numpy(ids).long())[-1]
    assert relative_error(found, expected) < (1e-5 if dtype == "float32" else 5e-3)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    engine.close()


def _word_tokenizer(vocab_size: int) -> str:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    vocab = {f"w{i}": i for i in range(vocab_size)}
    return Tokenizer(BPE(vocab=vocab, merges=[])).to_str()
