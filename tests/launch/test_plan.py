from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import ConfigError
from hybridgen.formats.mock_model import mock_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.launch.config_sources import config_from_options
from hybridgen.launch.placement import CpuSupply
from hybridgen.launch.plan import TreePlan, make_plan


def plan_of(num_cpus: int = 16, model: ModelInfo | None = None, **options: Any) -> TreePlan:
    config = config_from_options({"model": "mock", **options})
    supply = CpuSupply(tuple(range(num_cpus)), None)
    return make_plan(config, model or mock_model(config), supply, num_cores=num_cpus)


def real_model(max_position: int = 8192) -> ModelInfo:
    """Shape of a small Llama: 64 KiB of keys and values per token in bfloat16."""
    mock = mock_model(config_from_options({}))
    shape = msgspec.structs.replace(
        mock.config,
        num_layers=32,
        num_heads=8,
        num_kv_heads=8,
        head_dim=64,
        max_position=max_position,
    )
    return msgspec.structs.replace(mock, kind="gguf", config=shape)


def names(plan: TreePlan) -> list[str]:
    return [worker.name for worker in plan.workers]


def test_two_cpus_get_one_process_of_each_role() -> None:
    assert names(plan_of(2)) == [
        *("coscheduler-0", "gpu-0", "sampler-0", "tokenizer-0", "detokenizer-0")
    ]


def test_the_budget_is_four_fifths_of_the_usable_cpus() -> None:
    assert plan_of(16).num_cpu_threads == 12
    assert plan_of(1).num_cpu_threads == 1
    config = config_from_options({"model": "mock"})
    supply = CpuSupply(tuple(range(16)), quota=4.0)
    assert make_plan(config, mock_model(config), supply, 16).num_cpu_threads == 3


@given(st.integers(1, 256), st.integers(1, 1024))
def test_pools_fit_the_budget_and_none_is_empty(num_cpus: int, max_num_seqs: int) -> None:
    plan = plan_of(num_cpus, max_num_seqs=max_num_seqs)
    pools = plan.config.pools
    sizes = [pools.num_tokenizers, pools.num_samplers, pools.num_detokenizers]
    assert min(sizes) >= 1
    assert sum(sizes) + 1 <= max(4, plan.num_cpu_threads)
    assert pools.num_samplers <= max_num_seqs


def test_fixed_pools_are_kept_and_the_others_share_the_rest() -> None:
    pools = plan_of(16, num_tokenizers=4, num_samplers=2).config.pools
    assert (pools.num_tokenizers, pools.num_samplers, pools.num_detokenizers) == (4, 2, 1)


def test_more_threads_than_cores_are_refused_with_the_number() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(4, num_cpu_threads=5)
    assert caught.value.fields["limit"] == 4


def test_every_process_has_its_own_board_line_in_the_order_of_names() -> None:
    plan = plan_of(16)
    assert plan.worker_names[0] == "supervisor-0"
    for worker in plan.workers:
        assert plan.worker_names[worker.board_index] == worker.name
    assert plan.geometry.num_processes == len(plan.worker_names)
    assert len(set(plan.worker_names)) == len(plan.worker_names)


def test_slots_hold_running_queued_and_spare_requests() -> None:
    plan = plan_of(max_num_seqs=10, backlog_limit=20)
    assert plan.geometry.num_slots == 46
    assert plan.geometry.max_rows == 10


def test_segments_are_the_six_that_workers_know() -> None:
    plan = plan_of()
    assert {segment.name for segment in plan.segments} == {
        *("slots", "tokens", "logits", "sampled", "logprobs", "board")
    }
    assert plan.shm_bytes == sum(segment.size_bytes for segment in plan.segments)
    assert all(segment.flags for segment in plan.segments)


def test_the_context_is_the_models_own_up_to_32768() -> None:
    assert plan_of(model=real_model(8192)).geometry.max_model_len == 8192
    assert plan_of(model=real_model(131_072)).geometry.max_model_len == 32_768
    assert plan_of(mock_max_model_len=512).geometry.max_model_len == 512


def test_a_longer_context_than_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len") as caught:
        plan_of(model=real_model(8192), max_model_len=8193)
    assert caught.value.fields["limit"] == 8192


def test_kv_blocks_come_from_count_memory_or_default() -> None:
    model = real_model(2048)
    block_bytes = 16 * 65_536
    assert plan_of(model=model, num_kv_blocks=200).num_kv_blocks == 200
    by_memory = plan_of(model=model, kv_cache_memory=300 * block_bytes + 1)
    assert (by_memory.num_kv_blocks, by_memory.kv_cache_bytes) == (300, 300 * block_bytes)
    assert plan_of(model=model, max_num_seqs=8).num_kv_blocks == 512
    assert plan_of(model=model, max_num_seqs=1).num_kv_blocks == 128  # one full sequence


def test_float32_doubles_the_cache() -> None:
    half = plan_of(model=real_model(), dtype="bfloat16").kv_cache_bytes
    assert plan_of(model=real_model(), dtype="float32").kv_cache_bytes == 2 * half


def test_a_cache_smaller_than_one_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match="--num-kv-blocks"):
        plan_of(model=real_model(2048), num_kv_blocks=127)


def test_a_model_with_a_window_needs_no_more_than_that_and_a_piece() -> None:
    model = real_model(2048)
    windows = msgspec.structs.replace(model.config, layer_windows=[128] * 32)
    windowed = msgspec.structs.replace(model, config=windows)
    most = 128 // 16 + 64 // 16 + 2
    assert plan_of(model=windowed, num_kv_blocks=most).num_kv_blocks == most
    with pytest.raises(ConfigError, match="--num-kv-blocks"):
        plan_of(model=windowed, num_kv_blocks=most - 1)
    assert plan_of(model=windowed, max_num_seqs=8).num_kv_blocks == 8 * most
    mixed = msgspec.structs.replace(windows, layer_windows=[128] * 31 + [0])
    with pytest.raises(ConfigError, match="--num-kv-blocks"):
        plan_of(model=msgspec.structs.replace(model, config=mixed), num_kv_blocks=127)


def test_nothing_is_left_open_in_the_resolved_configuration() -> None:
    config = plan_of(2).config
    assert config.pools.spin_us == 0
    assert plan_of(8).config.pools.spin_us == 50
    assert plan_of(8, spin_us=7).config.pools.spin_us == 7
    assert config.device.device == "cpu"
    assert config.device.num_compute_threads == 2
    assert config.device.num_kv_blocks > 0
    assert config.model.dtype == "bfloat16"
    assert config.model.max_model_len == 2048


def test_a_device_gets_a_deeper_ring_and_counts_its_own_blocks() -> None:
    plan = plan_of(model=real_model(), device="cuda", dtype="float16")
    assert plan.config.device.device == "cuda"
    assert (plan.num_kv_blocks, plan.config.device.num_kv_blocks) == (0, 0)
    assert plan.geometry.ring_depth == 3
    assert plan.geometry.cut_capacity == 512
    assert plan_of(model=real_model()).geometry.cut_capacity == 0
    sizes = {segment.name: segment.size_bytes for segment in plan.segments}
    on_cpu = {segment.name: segment.size_bytes for segment in plan_of(model=real_model()).segments}
    assert sizes["logits"] > 1.4 * on_cpu["logits"]
    assert {**sizes, "logits": 0, "sampled": 0} == {**on_cpu, "logits": 0, "sampled": 0}


def test_blocks_asked_for_on_a_device_must_hold_one_context() -> None:
    with pytest.raises(ConfigError, match="less than one sequence"):
        plan_of(model=real_model(), device="cuda", num_kv_blocks=10)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"device": "cuda"}, "mock"),
        ({"dtype": "float16"}, "float16"),
        ({"load_format": "dummy"}, "dummy"),
        ({"quantize_weights": 8}, "quantized"),
        ({"quantize_weights": 8, "device": "cpu"}, "16 on the CPU"),
    ],
)
def test_what_the_chosen_device_cannot_do_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        plan_of(**options)


def test_the_plan_does_not_carry_the_vocabulary() -> None:
    assert plan_of().model.tokenizer.tokens == []
