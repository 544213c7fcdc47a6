"""Trees on a device of which a part fails: the device, samplers, detokenizers, or nothing."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridgen import SamplingParams
from hybridgen.scheduler.canary import MAX_PROOF_AGE_S, WAIT_S
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

PROMPTS = prompts_of([40, 41, 42, 43])
#: The device process must be gone so soon after a fault that it does not recover from.
EXIT_LIMIT_S = 1.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TreeModel:
    return make_tree_model(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def tree(model: TreeModel) -> Iterator[RunningTree]:
    with running_tree(model=str(model.path), **OPTIONS, pool_restart_limit=1000) as running:
        yield running


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


@needs_cuda
def test_a_process_whose_device_failed_is_gone_at_once_and_streams_go_on(
    model: TreeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note"
    monkeypatch.setenv("FAULTY_NOTE", str(note))
    with faulty_tree(monkeypatch, "device-lost", model=str(model.path), **OPTIONS) as tree:
        gpu = os.pidfd_open(tree.pid_of("gpu-0"))
        try:
            streams = [tree.client.submit(prompt, greedy(600)) for prompt in PROMPTS]
            poller = select.poll()
            poller.register(gpu, select.POLLIN)
            assert poller.poll(30_000)
            took_s = time.monotonic() - float(note.read_text())
        finally:
            os.close(gpu)
        eventually(lambda: not tree.client.health().is_ready, 2.0)
        for prompt, stream in zip(PROMPTS, streams, strict=True):
            ids = stream.result().token_ids
            assert len(ids) == 600
            model.check_greedy(prompt, ids)
        (process,) = (p for p in tree.client.ps().processes if p.role == "gpu")
        assert process.restarts == 1
        assert process.last_exit == "exited with code 70: the device failed"
        assert tree.client.health().is_ready
    assert took_s < EXIT_LIMIT_S


@pytest.mark.parametrize("role", ["sampler", "detokenizer"])
def test_texts_are_whole_when_workers_around_the_device_are_killed(
    tree: RunningTree, model: TreeModel, role: str
) -> None:
    name, num_tokens, num_rounds = f"{role}-0", 1500, 3
    before = restarts(tree, name)
    for _ in range(num_rounds):
        streams = [tree.client.submit(prompt, greedy(num_tokens)) for prompt in PROMPTS]
        first = next(iter(streams[0]))
        tree.wait_replaced(name, tree.kill(name))
        texts = [stream.result().token_ids for stream in streams]
        assert texts[0][: len(first.token_ids)] == first.token_ids
        for prompt, ids in zip(PROMPTS, texts, strict=True):
            assert len(ids) == num_tokens
            model.check_greedy(prompt, ids)
    assert restarts(tree, name) == before + num_rounds
    assert restarts(tree, "gpu-0") == 0


def test_a_sampler_is_replaced_by_the_process_that_waited(
    tree: RunningTree, model: TreeModel
) -> None:
    waiting, stream = tree.wait_standby("sampler"), tree.client.submit(PROMPTS[0], greedy(1500))
    first = next(iter(stream))
    tree.wait_replaced("sampler-1", tree.kill("sampler-1"))
    assert tree.pid_of("sampler-1") == waiting
    ids = stream.result().token_ids
    assert ids[: len(first.token_ids)] == first.token_ids
    model.check_greedy(PROMPTS[0], ids)


def test_a_tree_that_rested_proves_with_a_token_that_it_is_ready(tree: RunningTree) -> None:
    tree.client.generate(PROMPTS[0], greedy(2))
    rest()
    before = counter(tree, "gpu-0", "prefill_tokens")
    report = tree.client.health()
    assert report.is_ready
    assert report.last_step_age_s is not None
    assert report.last_step_age_s < WAIT_S
    assert counter(tree, "gpu-0", "prefill_tokens") == before + 1


def test_a_tree_that_rested_on_a_stuck_device_process_is_not_ready(tree: RunningTree) -> None:
    rest()
    pid = tree.kill("gpu-0", signal.SIGSTOP)
    asked_s = time.monotonic()
    report = tree.client.health()
    assert (report.is_ready, time.monotonic() - asked_s < WAIT_S + 1.0) == (False, True)
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: tree.client.health().is_ready, 10.0)
    assert restarts(tree, "gpu-0") == 0


def rest() -> None:
    """Until the last step proves nothing any more."""
    until_s = time.monotonic() + MAX_PROOF_AGE_S + 0.5
    eventually(lambda: time.monotonic() > until_s, MAX_PROOF_AGE_S + 2.0)
