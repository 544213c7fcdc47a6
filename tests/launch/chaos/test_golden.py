from __future__ import annotations

from hybridgen.config import Config
from hybridgen.launch.chaos.golden import goldens, make_questions


def test_the_same_seed_asks_the_same_questions() -> None:
    assert make_questions(20, 5) == make_questions(20, 5)
    assert make_questions(20, 5) != make_questions(20, 6)


def test_an_answer_does_not_depend_on_its_company() -> None:
    questions = make_questions(6, 3)
    together = goldens(questions, Config())
    assert [goldens([question], Config())[0] for question in questions[:2]] == together[:2]
    assert len({golden.text for golden in together}) == len(questions)


def test_answers_end_as_their_questions_say() -> None:
    questions = make_questions(40, 3)
    for question, golden in zip(questions, goldens(questions, Config()), strict=True):
        most = question.params.max_tokens
        assert golden.finish_reason in {"stop", "length"}
        assert (len(golden.ids) == most) or golden.finish_reason == "stop"
        assert question.params.min_tokens <= len(golden.ids)
