from __future__ import annotations

import pytest

from hybridgen.errors import ConfigError
from hybridgen.memory_amount import bytes_of

GIB = 1 << 30


@pytest.mark.parametrize(
    ("amount", "num_bytes"),
    [
        (0.9, 90 * GIB),
        ("0.9", 90 * GIB),
        (1, 100 * GIB),
        ("90%", 90 * GIB),
        (" 12.5 % ", int(12.5 * GIB)),
        ("60GiB", 60 * GIB),
        ("60 gib", 60 * GIB),
        ("60GB", 60 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5TiB", 1536 * GIB),
        ("64e9", 64 * 10**9),
        (64e9, 64 * 10**9),
        (64_000_000_000, 64 * 10**9),
        ("6.4E10", 64 * 10**9),
        ("1000b", 1000),
        (".5", 50 * GIB),
    ],
)
def test_shares_and_bytes_are_understood(amount: float | str, num_bytes: int) -> None:
    assert bytes_of(amount, 100 * GIB, name="gpu_memory") == num_bytes


@pytest.mark.parametrize(
    "amount",
    [
        *("", "0", "0%", "0GiB", 0.0, -0.5, "-1GiB", "101%", "nan", "inf", float("nan")),
        *("all", "60G i B", "60XB", "1e999", "0x10", "1_000", "٦GiB", "60GiB free"),
    ],
)
def test_anything_else_is_refused_with_examples(amount: float | str) -> None:
    with pytest.raises(ConfigError, match="gpu_memory is no amount of memory") as refusal:
        bytes_of(amount, 100 * GIB, name="gpu_memory")
    assert "0.9, 90%, 60GiB" in str(refusal.value)
    assert refusal.value.fields.get("value", "") == str(amount)


@pytest.mark.parametrize("amount", ["50%", "0.5", 1.0])
def test_a_share_is_refused_where_only_bytes_can_be_meant(amount: float | str) -> None:
    assert bytes_of("8GiB", None, name="cpu_kv_mem") == 8 * GIB
    with pytest.raises(ConfigError, match="cpu_kv_mem") as caught:
        bytes_of(amount, None, name="cpu_kv_mem")
    assert caught.value.fields["limit"] == "bytes"
