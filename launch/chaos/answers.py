"""The right answers to all questions: computed for the mock model, learned for any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hybridgen.client.async_client import AsyncClient
from hybridgen.errors import InternalError
from hybridgen.launch.chaos.golden import goldens
from hybridgen.launch.chaos.history import Golden, Question, Record
from hybridgen.launch.chaos.load import Load
from hybridgen.launch.chaos.options import MOCK, Options, tree_config


class Answers(NamedTuple):
    """What every later answer has to be."""

    goldens: list[Golden]
    records: list[Record]
    """Of the requests that it took to learn them."""


async def right_answers(
    client: AsyncClient, questions: Sequence[Question], options: Options
) -> Answers:
    """The answers of the tree of ``options``, which nothing has befallen yet.

    On the CPU device a text does not depend on what is computed beside it, so what an undisturbed
    tree says is right.

    Raises:
        InternalError: the undisturbed tree did not answer.
    """
    if options.model == MOCK:
        return Answers(goldens(list(questions), tree_config(options)), [])
    teacher = Load(client, questions, len(questions))
    await teacher.ask_each_once()
    records = sorted(teacher.records, key=lambda record: record.question)
    return Answers([_golden(record) for record in records], records)


def _golden(record: Record) -> Golden:
    outcome = record.outcomes[0]
    if outcome.error:
        raise InternalError("an undisturbed tree ended a request", value=outcome.error)
    return Golden(record.ids, record.text, outcome.finish_reason, outcome.num_prompt_tokens)
