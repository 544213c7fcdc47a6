"""What a model says about itself, whatever its format: fast, torch-free, no weight loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, ConfigError
from hybridgen.formats.dummy_model import dummy_model
from hybridgen.formats.gguf import MAGIC
from hybridgen.formats.gguf_model import inspect_gguf
from hybridgen.formats.huggingface import inspect_folder
from hybridgen.formats.hybridgen_file import SUFFIX, inspect_hybridgen
from hybridgen.formats.locate import DEMO_NAME, locate
from hybridgen.formats.mock_model import mock_model
from hybridgen.formats.model_file import ModelFile
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.pickled_weights import is_pickled, pickle_refused
from hybridgen.formats.verify import verify_file


def inspect_model(model: str, config: Config) -> ModelInfo:
    """Find ``model`` (a path, ``demo`` or ``mock``) and read its configuration and tokenizer.

    Raises:
        ConfigError: nothing is there.
        BadModelFile: damaged, or of no known format; names the field.
        UnsupportedModel: well-formed, but of a kind that is not implemented.
        WeightsMismatch: its tensors do not fit its configuration.
    """
    path = locate(model)
    if path == "mock":
        return mock_model(config)
    if config.model.load_format == "dummy":
        return dummy_model(path, config)
    if path.is_dir():
        return inspect_folder(path)
    leading = _leading_bytes(path)
    if leading == MAGIC or path.suffix == ".gguf":
        info = inspect_gguf(path)
        # The file's own name is that of a training run.
        return msgspec.structs.replace(info, name=DEMO_NAME) if model == "demo" else info
    if path.suffix in (SUFFIX, ".safetensors"):
        return inspect_hybridgen(path)
    if is_pickled(path, leading):
        raise pickle_refused(path)
    raise BadModelFile(
        "the file is of no known model format",
        field="magic",
        value=f"{path.name} beginning with {leading.hex(' ')}",
        limit="a GGUF or .hybridgen file, or a folder with config.json",
        remedy="Convert the model to one of these formats",
        file=str(path),
    )


def verify_model(info: ModelInfo) -> None:
    """Compare every byte of a .hybridgen file with the hashes in it.

    Raises:
        BadModelFile: naming the tensor that differs, found and expected.
        ConfigError: it is a model of another kind, which carries no hashes.
    """
    if info.kind != "hybridgen":
        raise ConfigError(
            "only a .hybridgen file carries hashes of its weights",
            value=info.kind,
            remedy="Make one with `hybridgen convert`",
        )
    verify_file(Path(info.path))


def _leading_bytes(path: Path) -> bytes:
    with ModelFile(path) as file:
        return bytes(file.buf[:4])
