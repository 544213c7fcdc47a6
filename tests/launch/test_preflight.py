from __future__ import annotations

import resource

import pytest

from hybridgen.errors import ConfigError, SharedMemoryFull
from hybridgen.launch import preflight
from hybridgen.launch.plan import TreePlan
from hybridgen.launch.segment_plan import plan_ring
from tests.launch.test_plan import plan_of, real_model


def bytes_with_a_second_ring(plan: TreePlan) -> int:
    """A new gpu process gets its ring while the old one is there."""
    return plan.shm_bytes + sum(ring.size_bytes for ring in plan_ring(plan.geometry))


def test_a_full_dev_shm_is_refused_with_need_have_and_remedy() -> None:
    plan = plan_of()
    need_bytes = bytes_with_a_second_ring(plan)
    with pytest.raises(SharedMemoryFull) as caught:
        preflight.check_shared_memory(plan.segments, need_bytes - 1)
    fields = caught.value.fields
    assert fields["need_bytes"] == need_bytes
    assert fields["have_bytes"] == need_bytes - 1
    assert "logprobs" in str(caught.value)
    assert "--backlog-limit" in str(fields["remedy"])


def test_segments_that_just_fit_are_accepted() -> None:
    plan = plan_of()
    preflight.check_shared_memory(plan.segments, bytes_with_a_second_ring(plan))


def test_a_plan_beyond_the_memory_is_refused_with_its_parts() -> None:
    plan = plan_of(model=real_model())
    with pytest.raises(ConfigError, match=r"KV cache 4\.0 GiB") as caught:
        preflight.check_memory(plan, 1 << 30)
    assert caught.value.fields["limit"] == "have 1.0 GiB"


def test_the_mock_model_needs_no_memory_for_weights() -> None:
    preflight.check_memory(plan_of(2), 1 << 30)


def test_too_few_open_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(ConfigError, match="open files"):
        preflight.check_files(6)


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: wanted.append(limits))
    preflight.check_files(6)
    assert wanted == [(4096, 4096)]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")],
)
def test_sizes_are_written_with_their_unit(num_bytes: int, text: str) -> None:
    assert preflight.format_bytes(num_bytes) == text
