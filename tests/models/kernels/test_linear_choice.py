from __future__ import annotations

import pytest

from hybridgen.models.kernels.linear_choice import (
    LinearShape,
    choose_linear,
    default_choice,
    load_table,
)

UNKNOWN = LinearShape(96, 64, False, 16)


def test_every_stored_choice_can_be_launched() -> None:
    assert load_table()
    for shape, choices in load_table().items():
        for num_tokens, choice in choices.items():
            assert choice.form not in ("gemv", "limb_gemv") or num_tokens == 1
            assert choice.form not in ("limb_gemv", "limb_dot") or shape.weight_bits == 8
            assert choice.form == "library" or choice.block_n & (choice.block_n - 1) == 0
            assert choice.form != "dot" or choice.block_b >= 16
            assert choice.form != "dot" or choice.splits * choice.block_k <= shape.size
            assert not choice.fuses_norm or choice.form != "library"


def test_a_batch_takes_the_choice_of_the_next_larger_that_was_measured() -> None:
    shape, choices = next(iter(load_table().items()))
    sizes = sorted(choices)
    assert choose_linear(sizes[-2] + 1, shape) == choices[sizes[-1]]
    assert choose_linear(sizes[-1], shape) == choices[sizes[-1]]


def test_batches_beyond_the_table_go_to_the_library_int8_where_many_share_the_copy() -> None:
    for shape, choices in load_table().items():
        beyond = max(*choices, 64) + 1
        is_dot = shape.weight_bits == 8 and beyond <= 128
        assert choose_linear(beyond, shape).form == ("dot" if is_dot else "library")
        assert choose_linear(max(beyond, 129), shape).form == "library"


@pytest.mark.parametrize("num_tokens", [1, 2, 9, 64, 65, 500])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_shapes_nobody_measured_get_a_choice(num_tokens: int, bits: int) -> None:
    choice = default_choice(num_tokens, UNKNOWN._replace(weight_bits=bits))
    assert choose_linear(num_tokens, UNKNOWN._replace(weight_bits=bits)) == choice
    assert (choice.form == "gemv") == (num_tokens == 1)
    assert (choice.form == "library") == (num_tokens > (128 if bits == 8 else 64))
