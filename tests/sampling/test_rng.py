from __future__ import annotations

import pytest

from hybridgen.sampling import _native
from hybridgen.sampling.rng import philox, uniform

# Published known answers: Random123, kat_vectors, "philox4x32 10".
ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, block):
    assert philox(counter, key) == block
    assert _native.philox(*counter, *key) == block


def test_uniform_takes_53_bits_of_the_block_for_seed_and_position():
    seed, position = 0x299F31D0_A4093822, 0x85A308D3_243F6A88
    first, second, _, _ = philox((0x243F6A88, 0x85A308D3, 0, 0), (0xA4093822, 0x299F31D0))
    assert uniform(seed, position) == ((first << 32 | second) >> 11) / 2**53


def test_uniform_differs_by_seed_and_by_position_and_fills_the_unit_interval():
    draws = [uniform(seed, position) for seed in range(40) for position in range(100)]
    assert len(set(draws)) == len(draws)
    assert all(0 <= draw < 1 for draw in draws)
    counts = [sum(k / 10 <= draw < (k + 1) / 10 for draw in draws) for k in range(10)]
    # chi-square with 9 degrees of freedom stays below 27.9 in 99.9 % of all cases
    assert sum((count - 400) ** 2 / 400 for count in counts) < 27.9
