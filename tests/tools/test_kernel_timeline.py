from __future__ import annotations

import pytest

from tools.kernel_timeline import Kernel, additions, cut_steps, places, read_kernels

LAYER = ["_norm_kernel", "split_dot_kernel", "decode_attention_kernel", "nvjet_tst", "splitKreduce"]
LAYER += ["split_dot_kernel", "_gate_kernel", "gemv_kernel"]
STEP = ["_embedding_kernel", *LAYER, *LAYER, "_advance_kernel", "split_dot_kernel", "_cut"]


def test_products_are_told_by_their_order_and_the_rest_by_name() -> None:
    layer = ["norm", "qkv", "attention", "output", "output", "gate_up", "gate", "down"]
    assert places(STEP, 2) == ["embedding", *layer, *layer, "state", "head", "other"]


def test_what_a_kernel_adds_begins_when_all_before_have_ended() -> None:
    step = [Kernel("a", 0, 10), Kernel("b", 4, 13), Kernel("c", 5, 12), Kernel("d", 15, 20)]
    found = {entry.name: entry for entry in additions([step, step], 1)}
    assert {name: entry.added_us for name, entry in found.items()} == {
        "a": 10,
        "b": 3,
        "c": 0,
        "d": 7,
    }
    assert found["d"].gap_us == 2
    assert found["b"].duration_us == 9
    assert sum(entry.added_us for entry in found.values()) == pytest.approx(20)
    assert all(entry.count == 1 for entry in found.values())


def test_only_whole_steps_of_a_trace_are_kept_and_only_kernels() -> None:
    events = [
        {"cat": "kernel", "name": name, "ts": float(number), "dur": 1.0}
        for number, name in enumerate(["_begin", *STEP, *STEP, *STEP[:3]])
    ]
    events.append({"cat": "gpu_memcpy", "name": "copy", "ts": 0.0, "dur": 1.0})
    steps = cut_steps(read_kernels({"traceEvents": list(reversed(events))}))
    assert [[kernel.name for kernel in step] for step in steps] == [STEP, STEP]
