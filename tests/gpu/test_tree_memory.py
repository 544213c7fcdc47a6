"""Trees on a device with too little memory: requests wait or are computed again, none dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from hybridgen import SamplingParams
from hybridgen.errors import OutOfDeviceMemory
from tests.gpu.device_tree import (
    OPTIONS,
    TREE_MARKS,
    TreeModel,
    counter,
    make_tree_model,
    needs_cuda,
    prompts_of,
    restarts,
)
from tests.support.eventually import eventually
from tests.support.faulty_tree import faulty_tree
from tests.support.running_tree import RunningTree, running_tree

pytestmark = TREE_MARKS

PARAMS = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
SHORT = prompts_of([60, 61, 62, 63, 64, 65, 66, 67])
#: Each is most of a piece of prefill, and its scores take more than an allocator keeps.
LONG = prompts_of([1900, 1901, 1902])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TreeModel:
    return make_tree_model(tmp_path_factory.mktemp("memory"))


def check_all(tree: RunningTree, model: TreeModel, prompts: list[list[int]]) -> None:
    """All at once; each text is the one that the model says."""
    streams = [tree.client.submit(prompt, PARAMS) for prompt in prompts]
    for prompt, stream in zip(prompts, streams, strict=True):
        model.check_greedy(prompt, stream.result().token_ids)


def test_rows_that_outgrow_the_blocks_wait_and_their_texts_are_those_of_rows_alone(
    model: TreeModel,
) -> None:
    # One context is 16 blocks; eight rows want 112 and more.
    options = {**OPTIONS, "num_kv_blocks": 40, "max_model_len": 256}
    with running_tree(model=str(model.path), **options, enable_prefix_caching=False) as tree:
        alone = [tree.client.submit(prompt, PARAMS).result().token_ids for prompt in SHORT]
        assert counter(tree, "coscheduler-0", "preempted") == 0
        streams = [tree.client.submit(prompt, PARAMS) for prompt in SHORT]
        crowd = [stream.result().token_ids for stream in streams]
        for prompt, found, wanted in zip(SHORT, crowd, alone, strict=True):
            model.check_greedy(prompt, wanted)
            model.check_same(prompt, found, wanted)
        assert counter(tree, "coscheduler-0", "preempted") > 0
        assert restarts(tree, "gpu-0") == 0
        eventually(lambda: tree.client.health().num_free_blocks == 40, 5.0)


@needs_cuda
def test_a_piece_that_finds_no_memory_is_computed_again(
    model: TreeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with faulty_tree(monkeypatch, "device-full", model=str(model.path), **OPTIONS) as tree:
        check_all(tree, model, LONG)
        assert counter(tree, "gpu-0", "memory_full") > 0
        assert counter(tree, "coscheduler-0", "overflowed") > 0
        assert restarts(tree, "gpu-0") == 0


@needs_cuda
def test_a_device_that_others_have_filled_ends_requests_at_worst_and_serves_after_that(
    model: TreeModel,
) -> None:
    with running_tree(model=str(model.path), **OPTIONS) as tree:
        check_all(tree, model, SHORT)
        with full_device():
            for prompt in LONG:
                with contextlib.suppress(OutOfDeviceMemory):
                    model.check_greedy(prompt, tree.client.generate(prompt, PARAMS).token_ids)
            check_all(tree, model, SHORT)
        check_all(tree, model, LONG)
        assert restarts(tree, "gpu-0") == 0


@contextlib.contextmanager
def full_device() -> Iterator[None]:
    """All of the device's memory is this process's."""
    held = []
    size_bytes, _ = torch.cuda.mem_get_info()
    while size_bytes > 1 << 20:
        try:
            held.append(torch.empty(size_bytes, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size_bytes //= 2
    try:
        yield
    finally:
        held.clear()
        torch.cuda.empty_cache()
