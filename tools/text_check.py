"""Are greedy texts right that were made while processes died?

They should be those of an undisturbed run. On a device they need not be, bit for bit: the order in
which it sums depends on how many rows a product has, and what was generated before a death is
computed again as a prompt. So where two texts part, the model is asked for the token there: both
must be among its likeliest, and nearly as likely as the first. Behind that place texts have nothing
to be compared with; there, a little after each kill, the model is asked for the token that follows
the text so far. A row that had lost, doubled or mixed up anything would be far from its answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from hybridgen import AsyncClient, SamplingParams

#: Log-probabilities of two tokens may differ by so much, and the other one be chosen.
MAX_GAP = 0.5
#: Tokens behind a kill at which a text is looked at again: made from recomputed KV for sure.
BEHIND = 8
#: Most places at which one text is looked at.
MAX_PLACES = 6
#: Several tokens can be nearly as likely: weights drawn at random have no favourites.
NUM_LIKELIEST = 20
_ASKING = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=NUM_LIKELIEST)


class Question(NamedTuple):
    """Which token follows ``ids``? One of these is expected."""

    ids: list[int]
    answers: tuple[int, ...]


class Answer(NamedTuple):
    """What the model said."""

    is_first: bool
    """All that was expected is the likeliest token."""
    gap: float
    """From the likeliest to the least likely that was expected; infinite: not among them."""


async def check_texts(
    client: AsyncClient,
    prompts: Sequence[list[int]],
    texts: Sequence[list[int]],
    calm: Sequence[list[int]],
    places: Sequence[Sequence[int]],
) -> bool:
    """Compare and ask, print; whether nothing is wrong.

    Args:
        client: of a tree without prefix caching, which has nothing else to do.
        prompts: token ids.
        texts: what followed them.
        calm: what followed them in an undisturbed run.
        places: for each kill, the length of every text at that time.
    """
    parts = [first_difference(*pair) for pair in zip(texts, calm, strict=True)]
    num_same = parts.count(None)
    print(f"{num_same} of {len(texts)} texts are those of the undisturbed run", flush=True)
    parted, behind = [], []
    for number, (prompt, text, part) in enumerate(zip(prompts, texts, parts, strict=True)):
        if part is not None:
            answers = (text[part], calm[number][part])
            parted.append(Question(prompt + text[:part], answers))
        for place in _spread([lengths[number] + BEHIND for lengths in places]):
            if place < len(text):
                behind.append(Question(prompt + text[:place], (text[place],)))
    is_right = await _ask_all(client, parted, "where the others part from it")
    return await _ask_all(client, behind, "behind kills") and is_right


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two texts differ first; None: nowhere that both reach."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), None)


def judge(question: Question, top: Sequence[tuple[int, float]]) -> Answer:
    """The answer, from the likeliest tokens with their log-probabilities."""
    logprobs = dict(top)
    gaps = [top[0][1] - logprobs.get(token, float("-inf")) for token in question.answers]
    return Answer(all(token == top[0][0] for token in question.answers), max(gaps))


async def _ask_all(client: AsyncClient, questions: Sequence[Question], where: str) -> bool:
    if not questions:
        return True

    async def ask(question: Question) -> Answer:
        async with client.submit(question.ids, _ASKING) as stream:
            output = await stream.result()
        top = [pair for logprob in output.logprobs or [] for pair in logprob.top]
        return judge(question, top)

    answers = await asyncio.gather(*map(ask, questions))
    num_wrong = sum(answer.gap > MAX_GAP for answer in answers)
    right = [answer.gap for answer in answers if answer.gap <= MAX_GAP]
    print(
        f"{len(answers)} tokens {where}: {sum(answer.is_first for answer in answers)} are the "
        f"likeliest, {num_wrong} WRONG, the others less likely by e^{max(right, default=0.0):.3f} "
        "at most",
        flush=True,
    )
    return num_wrong == 0


def _spread(places: list[int]) -> list[int]:
    """At most ``MAX_PLACES`` of them, evenly."""
    step = max(1, -(-len(places) // MAX_PLACES))
    return places[::step]
