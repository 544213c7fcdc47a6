"""Stored elements → floats; the oracle is the gguf library's numpy, cast by torch."""

from __future__ import annotations

import math

import gguf
import numpy as np
import pytest
import torch

from hybridgen.formats.convert_rows import NATIVE
from hybridgen.formats.gguf_types import ELEMENT_TYPES
from hybridgen.models import _native

FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
#: A piece of the kernels, and some of the next.
NUM_ELEMENTS = 1024 + 768


def converted(element: str, blocks: np.ndarray, to: str) -> tuple[torch.Tensor, float]:
    """The floats, and the largest magnitude."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[element]]
    found = torch.empty(blocks.nbytes // num_bytes * size, dtype=FLOATS[to])
    return found, _native.convert(element, blocks, to, found.view(torch.uint8).numpy())


def bits(values: torch.Tensor) -> torch.Tensor:
    """As integers, so that signs of zeros count; whatever is not a number is the same."""
    whole = values.view(torch.int32 if values.dtype == torch.float32 else torch.int16)
    return torch.where(values.isnan(), -1, whole)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("element", sorted(NATIVE))
def test_every_bit_is_that_of_the_library(element: str, to: str):
    kind = gguf.GGMLQuantizationType[element]
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(0)
    # Any bytes: scales of every size and sign, some infinite or not numbers.
    blocks = rng.integers(0, 256, (40 * NUM_ELEMENTS // size, num_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(np.ascontiguousarray(gguf.dequantize(blocks, kind))).flatten()
    found, _ = converted(element, blocks, to)
    assert torch.equal(bits(found), bits(expected.to(FLOATS[to])))


@pytest.mark.usefixtures("kernels")
def test_every_half_is_read_and_written_as_it_is():
    halves = np.arange(1 << 16, dtype=np.uint16)
    wide, _ = converted("F16", halves, "F32")
    assert torch.equal(bits(wide), bits(torch.from_numpy(halves).view(torch.float16).float()))
    again, _ = converted("F32", wide.numpy(), "F16")
    assert torch.equal(bits(again), bits(torch.from_numpy(halves).view(torch.float16)))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("to", ["BF16", "F16"])
def test_what_lies_between_two_floats_goes_to_the_nearest_or_the_even_one(to: str):
    shift = 16 if to == "BF16" else 13
    upper = np.arange(0, 1 << 32 - shift, 7, dtype=np.int64)[:, None] << shift
    around = np.array([-1, 0, 1]) + (1 << shift - 1)
    values = (upper + around).astype(np.uint32).ravel().view(np.float32)
    found, _ = converted("F32", values, to)
    assert torch.equal(bits(found), bits(torch.from_numpy(values).to(FLOATS[to])))


@pytest.mark.usefixtures("kernels")
def test_the_largest_magnitude_is_told_wherever_it_is():
    values = np.zeros(NUM_ELEMENTS, np.float32)
    for place in (0, 1023, 1024, NUM_ELEMENTS - 1):
        values[:] = 1
        values[place] = -3.5
        assert converted("F32", values, "F16")[1] == 3.5
        values[place] = np.inf
        assert converted("F32", values, "F16")[1] == math.inf
        values[place - 1] = -np.nan
        assert math.isnan(converted("F32", values, "F16")[1])


@pytest.mark.parametrize("element", sorted(NATIVE))
def test_lengths_that_do_not_fit_are_refused_before_anything_is_written(element: str):
    (block,) = [kind for kind in ELEMENT_TYPES.values() if kind.name == element]
    for source, target in ((2, 1), (1, 2), (0, 1)):
        floats = np.full(target * block.block_size, 7, np.float32)
        with pytest.raises(ValueError, match="do not become"):
            _native.convert(element, bytes(source * block.block_bytes), "F32", floats)
        assert (floats == 7).all()
    if block.block_bytes > 1:
        with pytest.raises(ValueError, match="do not become"):
            _native.convert(element, bytes(block.block_bytes - 1), "F32", bytearray())


def test_what_is_no_element_or_no_place_for_floats_is_refused():
    with pytest.raises(ValueError, match="no kernel for elements IQ4_XS"):
        _native.convert("IQ4_XS", bytes(136), "F32", bytearray(1024))
    with pytest.raises(ValueError, match="are not floats"):
        _native.convert("F32", bytes(128), "Q8_0", bytearray(34))
    with pytest.raises(BufferError):
        _native.convert("F32", bytes(4), "F32", bytes(4))
    assert _native.convert("Q4_K", b"", "BF16", bytearray()) == 0.0
