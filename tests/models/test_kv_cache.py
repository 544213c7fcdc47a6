from __future__ import annotations

import pytest
import torch

from hybridgen.errors import OutOfHostMemory
from hybridgen.models.kv_cache import KvCache, available_bytes, kv_block_bytes
from tests.models.tiny_model import tiny_config

CONFIG = tiny_config()  # 2 layers, 2 kv heads of 32


def test_a_block_holds_keys_and_values_of_16_positions_of_every_layer():
    assert kv_block_bytes(CONFIG, torch.bfloat16) == 2 * 2 * 2 * 32 * 16 * 2
    cache = KvCache(CONFIG, 3, torch.bfloat16)
    assert cache.keys.shape == (2, 3, 2, 32, 16)
    assert cache.values.shape == (2, 3, 2, 16, 32)
    assert cache.keys.nbytes + cache.values.nbytes == 3 * kv_block_bytes(CONFIG, torch.bfloat16)


def test_a_cache_larger_than_free_memory_is_refused_with_both_numbers():
    num_blocks = available_bytes() // kv_block_bytes(CONFIG, torch.float32) * 2
    with pytest.raises(OutOfHostMemory, match="does not fit") as caught:
        KvCache(CONFIG, num_blocks, torch.float32)
    fields = caught.value.fields
    assert fields["need_bytes"] == num_blocks * kv_block_bytes(CONFIG, torch.float32)
    assert 0 < fields["have_bytes"] < fields["need_bytes"]
    assert "--kv-cache-memory" in str(caught.value)


def test_free_memory_is_read_from_meminfo(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  200 kB\nMemAvailable:   150 kB\n")
    assert available_bytes(meminfo) == 150 * 1024
    meminfo.write_text("MemTotal:  200 kB\n")
    with pytest.raises(OutOfHostMemory, match="does not say"):
        available_bytes(meminfo)
