from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.config import Config, DeviceSection
from hybridgen.kvcache.kv_window import DEVICE_PIECE_TOKENS, KvWindow, kv_window
from hybridgen.scheduler.prefill_budget import WHOLE_PIECE


def test_without_a_window_every_block_is_kept() -> None:
    window = KvWindow(0, 16, 64)
    assert window.first_kept(10**6) == 0
    assert window.row_blocks(10**6) == 62_500


@given(
    num_tokens=st.integers(1, 100),
    block_size=st.sampled_from([1, 4, 16]),
    num_computed=st.integers(0, 400),
    num_in_flight=st.integers(0, 15),
)
def test_no_position_still_to_be_computed_reads_a_block_that_is_given_back(
    num_tokens: int, block_size: int, num_computed: int, num_in_flight: int
) -> None:
    first = KvWindow(num_tokens, block_size, 64).first_kept(num_computed)
    oldest = max(0, num_computed - min(num_in_flight, block_size))
    first_read = max(0, oldest - num_tokens + 1)
    assert first * block_size <= first_read
    assert first_read - first * block_size < 2 * block_size  # and hardly more is kept


@given(
    num_tokens=st.integers(1, 100),
    piece_tokens=st.integers(1, 70),
    num_computed=st.integers(0, 400),
)
def test_the_most_blocks_hold_the_window_and_a_whole_piece_behind_it(
    num_tokens: int, piece_tokens: int, num_computed: int
) -> None:
    window = KvWindow(num_tokens, 16, piece_tokens)
    room = (window.first_kept(num_computed) + window.most_blocks) * 16 - num_computed
    assert room >= piece_tokens
    assert window.most_blocks <= -(-num_tokens // 16) + -(-piece_tokens // 16) + 2


@pytest.mark.parametrize(("device", "piece_tokens"), [("cpu", 64), ("cuda", WHOLE_PIECE)])
def test_a_piece_is_as_large_as_the_device_computes_at_once(device: str, piece_tokens: int) -> None:
    config = Config(device=DeviceSection(device=device))  # type: ignore[arg-type]  # a literal
    assert kv_window(config, 4096) == KvWindow(4096, 16, piece_tokens)
    assert WHOLE_PIECE == DEVICE_PIECE_TOKENS
