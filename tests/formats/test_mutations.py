"""Some hundred damaged files: each is read or refused with a typed error, quickly."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import pytest

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, ModelError, UnsupportedModel, WeightsMismatch
from hybridgen.formats.convert import convert_model
from hybridgen.formats.inspect import inspect_model
from tools.make_tiny_model import TinyModel

NUM_MUTATIONS = 400
INTERESTING = (0, 1, 2**7, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


def mutate(content: bytes, head_bytes: int, seed: int) -> bytes:
    """One to three damages, most of them where lengths, counts and names stand."""
    dice = random.Random(seed)
    damaged = bytearray(content)
    for _ in range(dice.randint(1, 3)):
        position = dice.randrange(min(head_bytes, len(damaged) - 8))
        match dice.randrange(7):
            case 0:
                damaged[position] ^= 1 << dice.randrange(8)
            case 1:
                damaged[position] = dice.randrange(256)
            case 2:
                struct.pack_into("<Q", damaged, position, dice.choice(INTERESTING))
            case 3:
                struct.pack_into("<I", damaged, position, dice.choice(INTERESTING) & 0xFFFFFFFF)
            case 4:
                del damaged[position : position + dice.randint(1, 64)]
            case 5:
                damaged[position:position] = dice.randbytes(dice.randint(1, 64))
            case _:
                del damaged[dice.randrange(16, len(damaged)) :]
        if len(damaged) < 16:
            break
    return bytes(damaged)


def outcomes(path: Path, content: bytes, head_bytes: int) -> dict[str, int]:
    """Error class (or "read") → how often; anything untyped fails the test."""
    counts: dict[str, int] = {}
    for seed in range(NUM_MUTATIONS):
        path.write_bytes(mutate(content, head_bytes, seed))
        before_s = time.perf_counter()
        refusal: ModelError | None = None
        try:
            info = inspect_model(str(path), Config())
            convert_model(info, "bfloat16", path.with_suffix(".out"))
        except (BadModelFile, UnsupportedModel, WeightsMismatch) as error:
            refusal = error
        assert refusal is None or is_clear(refusal), (seed, refusal)
        assert time.perf_counter() - before_s < 1.0, seed
        outcome = "read" if refusal is None else type(refusal).__name__
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def is_clear(refusal: ModelError) -> bool:
    return bool(refusal.fields.get("remedy")) and len(str(refusal)) < 2000


def test_a_damaged_gguf_is_read_or_refused(tiny: TinyModel, tmp_path: Path):
    content = tiny.gguf.read_bytes()
    head_bytes = content.index(b"output_norm.weight") + 64
    counts = outcomes(tmp_path / "damaged.gguf", content, head_bytes)
    assert counts["BadModelFile"] > NUM_MUTATIONS // 3, counts
    assert counts["read"] > 10, counts


def test_a_damaged_hybridgen_file_is_read_or_refused(tiny: TinyModel, tmp_path: Path):
    whole = tmp_path / "whole.hybridgen"
    convert_model(inspect_model(str(tiny.gguf), Config()), "float32", whole)
    content = whole.read_bytes()
    (head_bytes,) = struct.unpack_from("<Q", content)
    counts = outcomes(tmp_path / "damaged.hybridgen", content, head_bytes)
    assert counts["BadModelFile"] > NUM_MUTATIONS // 3, counts


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_damaged_folder_is_read_or_refused(name: str, tiny: TinyModel, tmp_path: Path):
    for path in tiny.folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    content = (tiny.folder / name).read_bytes()
    damaged = tmp_path / name
    for seed in range(NUM_MUTATIONS // 4):
        damaged.unlink()
        damaged.write_bytes(mutate(content, len(content), seed))
        refusal: ModelError | None = None
        try:
            inspect_model(str(tmp_path), Config())
        except ModelError as error:
            refusal = error
        assert refusal is None or is_clear(refusal), (seed, refusal)
