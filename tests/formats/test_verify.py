from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, ConfigError, ModelError
from hybridgen.formats.convert import convert_model
from hybridgen.formats.hybridgen_file import read_hybridgen
from hybridgen.formats.inspect import inspect_model, verify_model
from hybridgen.formats.verify import verify_file
from tools.make_tiny_model import TinyModel


@pytest.fixture(scope="module")
def made(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    info = inspect_model(str(tiny.folder), Config())
    path = tmp_path_factory.mktemp("verify") / "x.hybridgen"
    return convert_model(info, "bfloat16", path, is_int8=True)


def flip(source: Path, target: Path, place: int) -> Path:
    content = bytearray(source.read_bytes())
    content[place] ^= 0x10
    target.write_bytes(content)
    return target


def test_a_file_as_it_was_written_passes(made: Path):
    verify_file(made)


def test_a_flipped_byte_is_found_in_each_tensor(made: Path, tmp_path: Path):
    header = read_hybridgen(made).header
    for name, tensor in header.tensors.items():
        for offset in (tensor.data_offsets[0], tensor.data_offsets[1] - 1):
            damaged = flip(made, tmp_path / "x.hybridgen", header.data_start + offset)
            with pytest.raises(BadModelFile, match="not what was written") as caught:
                verify_file(damaged)
            fields = caught.value.fields
            assert (fields["field"], fields["num_damaged"]) == (name, 1)
            assert fields["value"] != fields["limit"]


def test_a_flipped_byte_anywhere_in_the_header_is_found(made: Path, tmp_path: Path):
    num_bytes = read_hybridgen(made).header.data_start
    for place in range(0, num_bytes, 97):
        with pytest.raises(ModelError):
            verify_file(flip(made, tmp_path / "x.hybridgen", place))


def test_other_formats_carry_no_hashes(tiny: TinyModel):
    with pytest.raises(ConfigError, match="carries hashes") as caught:
        verify_model(inspect_model(str(tiny.gguf), Config()))
    assert "hybridgen convert" in str(caught.value.fields["remedy"])
