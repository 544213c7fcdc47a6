from __future__ import annotations

from pathlib import Path

import pytest

from hybridgen.client.batch import Batch
from hybridgen.client.client import Client
from hybridgen.errors import ContextLengthExceeded, HybridGenError, QueueFull
from hybridgen.messages import SubmitRequest
from hybridgen.request import SamplingParams, TextPrompt
from tests.support.eventually import eventually
from tests.support.fake_server import FakeServer, golden_of


def work_of(num_prompts: int) -> list[tuple[TextPrompt, SamplingParams]]:
    return [
        (TextPrompt(f"w{index}"), SamplingParams(max_tokens=1 + index % 7))
        for index in range(num_prompts)
    ]


def golden_texts(work: list[tuple[TextPrompt, SamplingParams]]) -> list[str]:
    return [golden_of(prompt, params.max_tokens or 12).text for prompt, params in work]


def test_outputs_come_in_order_and_no_more_are_open_than_wanted(tmp_path: Path) -> None:
    work = work_of(40)
    with FakeServer(tmp_path / "run", tokens_per_step=4) as server, Client(server.uri) as client:
        outputs = Batch(client, work, max_open=5).run()
    assert [output.text for output in outputs] == golden_texts(work)
    assert server.max_running <= 6  # five open, and one whose acknowledgement is on its way


def test_a_full_server_is_waited_for(tmp_path: Path) -> None:
    def reject(_: SubmitRequest) -> HybridGenError | None:
        if len(server.requests) < 2:
            return None
        return QueueFull("the backlog is full", retry_after_s=0.005)

    work = work_of(12)
    with (
        FakeServer(tmp_path / "run", tokens_per_step=4, reject=reject) as server,
        Client(server.uri) as client,
    ):
        outputs = Batch(client, work, max_open=12).run()
    assert [output.text for output in outputs] == golden_texts(work)
    assert server.num_rejected > 0


def test_the_first_error_names_its_prompt_and_cancels_the_others(tmp_path: Path) -> None:
    def reject(order: SubmitRequest) -> HybridGenError | None:
        is_bad = order.prompt == TextPrompt("w3")
        return ContextLengthExceeded("too long", value=9000, limit=8192) if is_bad else None

    with (
        FakeServer(tmp_path / "run", gate=0, reject=reject) as server,
        Client(server.uri) as client,
    ):
        with pytest.raises(ContextLengthExceeded) as caught:
            Batch(client, work_of(6), max_open=6).run()
        eventually(lambda: server.requests == {})
        assert len(server.cancelled) == 5
    assert caught.value.fields["prompt_index"] == 3


def test_an_empty_batch_is_an_empty_list(tmp_path: Path) -> None:
    with FakeServer(tmp_path / "run") as server, Client(server.uri) as client:
        assert Batch(client, [], max_open=4).run() == []
