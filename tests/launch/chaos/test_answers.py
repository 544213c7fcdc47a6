from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hybridgen.errors import InternalError
from hybridgen.launch.chaos import answers
from hybridgen.launch.chaos.answers import right_answers
from hybridgen.launch.chaos.golden import make_questions
from hybridgen.launch.chaos.history import Golden, Outcome, Piece, Record
from hybridgen.launch.chaos.options import Options

QUESTIONS = make_questions(2, 7)


class Teacher:
    """In the place of the load: answers in another order than it is asked."""

    error = ""

    def __init__(self, *_: object) -> None:
        self.records: list[Record] = []

    async def ask_each_once(self) -> None:
        for number in (1, 0):
            pieces = [Piece(1.0, "a", [1]), Piece(2.0, f"{number}", [number])]
            outcome = Outcome(3.0, "stop", 2, num_prompt_tokens=9, error=self.error)
            self.records.append(Record(number, 0.0, 60.0, pieces=pieces, outcomes=[outcome]))


@pytest.fixture(autouse=True)
def teacher(monkeypatch: pytest.MonkeyPatch) -> type[Teacher]:
    monkeypatch.setattr(answers, "Load", Teacher)
    return Teacher


def ask(model: str) -> answers.Answers:
    options = Options(folder=Path(), seed=7, model=model)
    return asyncio.run(right_answers(None, QUESTIONS, options))  # type: ignore[arg-type]  # not asked


def test_answers_of_a_model_are_learned_in_the_order_of_the_questions() -> None:
    learned = ask("demo")
    assert learned.goldens == [
        Golden([1, 0], "a0", "stop", 9),
        Golden([1, 1], "a1", "stop", 9),
    ]
    assert [record.question for record in learned.records] == [0, 1]


def test_answers_of_the_mock_model_are_computed() -> None:
    computed = ask("mock")
    assert len(computed.goldens) == len(QUESTIONS)
    assert computed.records == []


def test_a_tree_that_does_not_answer_teaches_nothing(
    teacher: type[Teacher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "error", "poison_request")
    with pytest.raises(InternalError, match="poison_request"):
        ask("demo")
