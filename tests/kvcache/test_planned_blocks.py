from __future__ import annotations

import pytest

from hybridgen.config import Config, DeviceSection, SchedulerSection
from hybridgen.kvcache.planned_blocks import planned_blocks

BYTES_PER_TOKEN = 1024


@pytest.mark.parametrize(
    ("device", "max_num_seqs", "max_model_len", "num_blocks"),
    [
        ({"num_kv_blocks": 7, "kv_cache_memory": 10**6}, 4, 256, 7),
        ({"kv_cache_memory": 100_000}, 4, 256, 100_000 // 16_384),
        ({"kv_cache_memory": 1}, 4, 256, 0),
        ({}, 4, 256, 4 * 1024 // 16),
        ({}, 1, 5000, 313),
    ],
)
def test_blocks_follow_from_number_then_bytes_then_load(
    device: dict[str, int], max_num_seqs: int, max_model_len: int, num_blocks: int
) -> None:
    config = Config(
        device=DeviceSection(**device),  # type: ignore[arg-type]  # plain counts
        scheduler=SchedulerSection(max_num_seqs=max_num_seqs),
    )
    planned = planned_blocks(config, max_model_len=max_model_len, bytes_per_token=BYTES_PER_TOKEN)
    assert planned == num_blocks
