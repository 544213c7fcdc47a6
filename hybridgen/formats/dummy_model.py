"""A model that has a shape and no weights: its config.json alone, for measuring."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridgen.config import Config
from hybridgen.formats.families.registry import huggingface_config_of
from hybridgen.formats.json_file import JsonFile
from hybridgen.formats.mock_model import EOS_ID, VOCAB_SIZE, mock_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.tokenizer_spec import TokenType


def dummy_model(path: Path, config: Config) -> ModelInfo:
    """The shape in ``path`` with the mock model's tokenizer, filled up to its vocabulary.

    Raises:
        BadModelFile, UnsupportedModel: see ``families.registry.huggingface_config_of``.
    """
    shape = huggingface_config_of(JsonFile.read(path), JsonFile(path, {}))
    shape = msgspec.structs.replace(shape, eos_ids=[EOS_ID])
    tokenizer = mock_model(config).tokenizer
    num_more = shape.vocab_size - VOCAB_SIZE
    return ModelInfo(
        name=path.stem,
        path=str(path.resolve()),
        kind="dummy",
        config=shape,
        tokenizer=msgspec.structs.replace(
            tokenizer,
            tokens=[*tokenizer.tokens, *(f" w{number}" for number in range(num_more))],
            token_types=[*tokenizer.token_types, *([int(TokenType.NORMAL)] * num_more)],
            vocab_size=shape.vocab_size,
        ),
        weight_bytes=2 * shape.num_parameters,
    )
