"""What counts as a right text of a tree whose processes were killed."""

from __future__ import annotations

import asyncio

import pytest

from hybridgen.request import TokenLogprob
from tools.text_check import MAX_GAP, Question, check_texts, first_difference, judge

TOP = [(7, -0.5), (9, -0.5 - MAX_GAP / 2)]


@pytest.mark.parametrize(
    ("one", "other", "place"), [([1, 2], [1, 2], None), ([1, 2, 3], [1, 4, 3], 1), ([1], [], None)]
)
def test_texts_part_where_they_differ_first(
    one: list[int], other: list[int], place: int | None
) -> None:
    assert first_difference(one, other) == place


def test_an_answer_tells_how_far_behind_the_likeliest_token_others_are() -> None:
    assert judge(Question([1], (7,)), TOP) == (True, 0.0)
    assert judge(Question([1], (7, 9)), TOP) == (False, pytest.approx(MAX_GAP / 2))
    assert judge(Question([1], (8,)), TOP).gap == float("inf")


class CountingModel:
    """A client of a model that counts: 5 follows 4. Sometimes one more is nearly as likely."""

    def submit(self, ids: list[int], _params: object) -> CountingModel:
        self._next = ids[-1] + 1
        return self

    async def __aenter__(self) -> CountingModel:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def result(self) -> CountingModel:
        top = [(self._next, -0.1), (self._next + 1, -0.2)]
        self.logprobs = [TokenLogprob(self._next, -0.1, top)]
        return self


def is_right(text: list[int], calm: list[int], *kills: int) -> bool:
    places = [[place] for place in kills]
    model = CountingModel()
    return asyncio.run(check_texts(model, [[0]], [text], [calm], places))  # type: ignore[arg-type]


def test_texts_may_part_where_two_tokens_are_as_likely(capsys: pytest.CaptureFixture[str]) -> None:
    calm = [*range(1, 20)]
    assert is_right(calm, calm, 3)
    assert "1 of 1 texts are those" in capsys.readouterr().out
    assert is_right([*range(1, 6), *range(7, 21)], calm, 9)
    assert "0 of 1 texts are those" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        [*range(1, 6), *range(8, 22)],  # two tokens were lost
        [*range(1, 6), 5, *range(6, 19)],  # one was doubled
        [*range(1, 12), 3, *range(13, 20)],  # one is another's
    ],
)
def test_texts_that_part_elsewhere_are_wrong(text: list[int]) -> None:
    assert not is_right(text, [*range(1, 20)])


def test_a_text_that_had_parted_is_looked_at_behind_kills() -> None:
    parted = [*range(1, 6), *range(7, 12)]
    spoiled = [*parted, 3, 4, 5, *range(6, 20)]
    assert not is_right(spoiled, [*range(1, 28)], len(parted) - 8)
