from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridgen.llm
from hybridgen.config import Config
from hybridgen.errors import ConfigError, InvalidRequest
from hybridgen.llm import LLM, as_prompts, spread_params
from hybridgen.request import ChatMessage, ChatPrompt, IdsPrompt, SamplingParams, TextPrompt
from tests.support.fake_server import FakeServer, golden_of


class FakeTree:
    """In place of a process tree: a fake server in a thread."""

    def __init__(self, path: Path) -> None:
        self.server = FakeServer(path)
        self.uri = self.server.uri
        self.configs: list[Config] = []
        self.num_stops = 0

    def start(self, config: Config, *, quiet: bool) -> FakeTree:
        assert quiet
        self.configs.append(config)
        return self

    def stop(self) -> None:
        self.num_stops += 1


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTree]:
    tree = FakeTree(tmp_path / "run")
    monkeypatch.setattr(hybridgen.llm, "start_tree", tree.start)
    with tree.server:
        yield tree


def test_generate_takes_texts_ids_and_messages_and_keeps_their_order(tree: FakeTree) -> None:
    prompts = ["hill", [4, 5], [{"role": "user", "content": "hi"}]]
    with LLM("mock", max_num_seqs=2) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=3))
        assert llm.tokenize("hill") == [1, 2, 3]
    assert [output.text for output in outputs] == [
        golden_of(prompt, 3).text for prompt in as_prompts(prompts)
    ]
    [config] = tree.configs
    assert (config.model.model, config.scheduler.max_num_seqs) == ("mock", 2)
    assert tree.num_stops == 1


def test_each_prompt_may_have_its_own_parameters(tree: FakeTree) -> None:
    with LLM("mock") as llm:
        outputs = llm.generate(["a", "b"], [SamplingParams(max_tokens=2), SamplingParams(seed=9)])
        [chat] = llm.chat([{"role": "user", "content": "hi"}])
    assert [len(output.token_ids) for output in outputs] == [2, 12]
    assert outputs[1].seed == 9
    assert chat.finish_reason == "length"
    assert tree.server.requests == {}


def test_close_is_safe_to_repeat(tree: FakeTree) -> None:
    llm = LLM("mock")
    llm.close()
    llm.close()
    assert tree.num_stops >= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [({"max_num_seq": 4}, "max_num_seqs"), ({"max_num_seqs": 0}, "max_num_seqs")],
)
def test_a_bad_option_is_named_with_its_remedy(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM("mock", **options)
    assert words.replace("_", "-") in str(caught.value).replace("_", "-")


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("one", [TextPrompt("one")]),
        (["one", "two"], [TextPrompt("one"), TextPrompt("two")]),
        ([1, 2], [IdsPrompt([1, 2])]),
        ([[1], [2]], [IdsPrompt([1]), IdsPrompt([2])]),
        (TextPrompt("x"), [TextPrompt("x")]),
        ([TextPrompt("x"), [3]], [TextPrompt("x"), IdsPrompt([3])]),
        ([ChatMessage("user", "hi")], [ChatPrompt([ChatMessage("user", "hi")])]),
        ([[{"role": "user", "content": "hi"}]], [ChatPrompt([ChatMessage("user", "hi")])]),
        ([], []),
    ],
)
def test_one_prompt_or_many_are_told_apart(prompts: Any, expected: list[Any]) -> None:
    assert as_prompts(prompts) == expected


def test_tools_are_offered_in_every_conversation(
    tree: FakeTree,  # noqa: ARG001  # which an LLM needs
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(LLM, "generate", lambda _, prompts, __: seen.extend(prompts) or [])
    tool = {"type": "function", "function": {"name": "f"}}
    talk = [{"role": "user", "content": "hi"}]
    llm = LLM("mock")
    llm.chat([talk, talk], tools=[tool])
    llm.chat(talk)
    llm.close()
    assert seen == [ChatPrompt.of(talk, [tool])] * 2 + [ChatPrompt.of(talk)]


@pytest.mark.parametrize("prompts", [None, 5, b"bytes", [1, "two"], ["", 3], [[]], [None]])
def test_what_is_no_prompt_is_refused(prompts: Any) -> None:
    with pytest.raises(InvalidRequest):
        as_prompts(prompts)


def test_parameters_must_fit_the_prompts() -> None:
    one = SamplingParams(seed=1)
    assert spread_params(None, 2) == [SamplingParams()] * 2
    assert spread_params(one, 2) == [one, one]
    with pytest.raises(InvalidRequest, match="does not fit"):
        spread_params([one], 2)
    with pytest.raises(InvalidRequest, match="top_k"):
        spread_params(SamplingParams(top_k=-2), 1)
