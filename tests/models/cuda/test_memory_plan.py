from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from hybridgen.errors import ConfigError, OutOfDeviceMemory
from hybridgen.models.config import Experts, ModelConfig
from hybridgen.models.cuda.expert_buffers import expert_buffer_bytes
from hybridgen.models.cuda.memory_plan import EngineShape, plan_memory

GIB = 1 << 30
SHAPE = EngineShape(
    max_rows=64, max_model_len=4096, max_chunk=2048, num_logits_slots=16, block_size=16,
    element_bytes=2,
)  # fmt: skip
LLAMA_13B = ModelConfig(
    architecture="llama", vocab_size=32000, num_layers=40, hidden_size=5120,
    intermediate_size=13824, num_heads=40, num_kv_heads=40, head_dim=128, max_position=4096,
)  # fmt: skip


def plan(
    total_gib: float,
    gpu_memory: float | str = 0.9,
    free_gib: float = 1000,
    shape: EngineShape = SHAPE,
    config: ModelConfig = LLAMA_13B,
    **asked: int,
):
    return plan_memory(
        config, shape, total_bytes=int(total_gib * GIB), free_bytes=int(free_gib * GIB),
        gpu_memory=gpu_memory, **asked,
    )  # fmt: skip


def test_the_cache_gets_what_weights_and_buffers_leave():
    found = plan(140)
    norms = (2 * 40 + 1) * 5120  # float32
    assert found.weight_bytes == 2 * (LLAMA_13B.num_parameters + norms)
    assert found.block_bytes == 16 * 2 * 40 * 5120 * 2
    assert 0.9 * 140 * GIB - found.total_bytes < 2 * found.block_bytes
    assert found.total_bytes <= 0.9 * 140 * GIB


def test_what_others_use_of_the_device_is_not_there():
    assert plan(140, free_gib=60).total_bytes <= 60 * GIB


def test_the_amount_may_be_a_share_or_bytes_and_the_plan_shows_it():
    assert plan(140, "90%").num_blocks == plan(140).num_blocks
    found = plan(140, "60GiB")
    assert 60 * GIB - 2 * found.block_bytes < found.total_bytes <= 60 * GIB
    assert str(found).startswith("weights 24.24 GiB, workspace ")
    assert str(found).endswith("of 60.00 GiB (gpu_memory 60GiB of 140.00 GiB, 1000.00 GiB free)")


def test_more_than_the_device_has_is_refused():
    with pytest.raises(OutOfDeviceMemory) as refusal:
        plan(140, "150GiB")
    assert "got 150GiB, 150.00 GiB; limit 140.00 GiB" in str(refusal.value)
    with pytest.raises(ConfigError, match="no amount of memory"):
        plan(140, "150%")


def test_a_number_of_blocks_is_kept():
    assert plan(140, num_blocks=500).num_blocks == 500
    assert plan(140, kv_bytes=20 * GIB).num_blocks == 20 * GIB // (16 * 2 * 40 * 5120 * 2)


def test_int8_halves_the_weights_and_needs_room_to_write_a_matrix_out():
    whole, rough = plan(140), plan(140, shape=SHAPE._replace(is_int8=True))
    assert 0.5 < rough.weight_bytes / whole.weight_bytes < 0.51
    matrix_bytes = 2 * LLAMA_13B.vocab_size * LLAMA_13B.hidden_size
    assert rough.workspace_bytes == whole.workspace_bytes + matrix_bytes
    many = plan(140, shape=SHAPE._replace(is_int8=True, max_rows=256))
    more = plan(140, shape=SHAPE._replace(max_rows=256))
    assert many.workspace_bytes == more.workspace_bytes + 2 * matrix_bytes  # decode does it, too


def test_norms_behind_products_and_a_second_rotation_table_have_room():
    plain = plan(140).workspace_bytes
    normed = plan(140, config=replace(LLAMA_13B, has_post_norms=True)).workspace_bytes
    assert normed - plain == (64 + 2048) * 5120 * 2
    windows = [1024, 0] * 20
    local = replace(LLAMA_13B, layer_windows=windows, local_rope_base=1e4)
    assert plan(140, config=local).workspace_bytes - plain == 2 * 4096 * 64 * 4
    partial = replace(LLAMA_13B, rotary_dim=64)
    assert plain - plan(140, config=partial).workspace_bytes == 2 * 4096 * 32 * 4


def test_the_gates_of_a_large_shared_expert_have_room():
    experts = Experts(num_experts=2, num_chosen=1, size=64, shared_size=16384)
    usual = replace(experts, shared_size=13824)
    for is_int8, dequantized in ((False, 0), (True, 2 * (2 * 16384 - 32000) * 5120)):
        shape = SHAPE._replace(is_int8=is_int8)
        found, less = (
            plan(140, shape=shape, config=replace(LLAMA_13B, experts=e)).workspace_bytes
            - sum(expert_buffer_bytes(e, 5120, rows, 2) for rows in (64, 2048))
            for e in (experts, usual)
        )
        assert found - less == (64 + 2048) * 2 * (16384 - 13824) * 2 + dequantized


@pytest.mark.parametrize(
    ("total_gib", "asked", "remedy"),
    [
        (24, {}, "smaller model"),
        (30, {}, "--max-model-len"),
        (140, {"num_blocks": 100_000}, "--num-kv-blocks"),
        (140, {"num_blocks": 10}, "--num-kv-blocks"),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(total_gib, asked, remedy):
    with pytest.raises(OutOfDeviceMemory) as refusal:
        plan(total_gib, **asked)
    text = str(refusal.value)
    assert "weights 24.2" in text
    assert remedy in text
    assert refusal.value.fields["have_bytes"] == int(int(total_gib * GIB) * 0.9)


def test_with_a_window_the_least_is_that_and_a_piece():
    windowed = msgspec.structs.replace(LLAMA_13B, layer_windows=[256] * 40)
    shape = SHAPE._replace(max_model_len=32_768)
    most = 256 // 16 + 2048 // 16 + 2
    sizes = {"total_bytes": 140 * GIB, "free_bytes": 140 * GIB, "gpu_memory": 0.9}
    assert plan_memory(windowed, shape, num_blocks=most, **sizes).num_blocks == most
    with pytest.raises(OutOfDeviceMemory, match=f"takes {most} blocks"):
        plan_memory(windowed, shape, num_blocks=most - 1, **sizes)
