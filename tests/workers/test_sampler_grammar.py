"""Rows with a grammar: what a sampler chooses, and that a replacement goes on alike."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hybridgen.formats.mock_model import EOS_ID, token_bytes
from hybridgen.ipc.slot_table import RowError, SlotWord
from hybridgen.request import FinishReason, Grammar, SamplingParams
from hybridgen.workers.sampler import Sampler
from tests.workers.steps import next_row, publish
from tests.workers.workplace import Workplace

#: Wanted by the model at every step: what no grammar here allows.
FORBIDDEN = ord("Z")
PROMPT = [1, 2, 3]
TOKENS = token_bytes()


def params(grammar: Grammar, seed: int = 1) -> SamplingParams:
    return SamplingParams(seed=seed, grammar=grammar)


def finish_of(place: Workplace, slot: int) -> int:
    return place.slots.load(slot, SlotWord.FINISH)


def play(place: Workplace, samplers: list[Sampler], slots: list[int], first: int = 1) -> list[str]:
    """Steps over the slots until all have ended, each by the next of ``samplers``; their texts."""
    step = first
    while live := [slot for slot in slots if not finish_of(place, slot)]:
        lane = (step - first) % len(samplers)
        publish(place, step, [(next_row(place, slot, lane), FORBIDDEN) for slot in live])
        samplers[lane].turn(0)
        assert place.sampled.done(step, lane) == step
        step += 1
    return [b"".join(TOKENS[id_] for id_ in place.output(slot)[:-1]).decode() for slot in slots]


def born(place: Workplace, name: str = "sampler-0", incarnation: int = 1) -> Sampler:
    return Sampler(place.context(name, incarnation=incarnation))


def test_a_text_fits_its_grammar_whatever_the_model_wants(workplace: Workplace) -> None:
    workplace.fill_slot(0, params(Grammar("regex", "[0-4]{3}-[5-9]{4}")), PROMPT)
    workplace.fill_slot(1, params(Grammar.choice(["yes", "no"])), PROMPT)
    digits, choice = play(workplace, [born(workplace)], [0, 1])
    assert len(digits) == 8
    assert choice in ("yes", "no")
    assert workplace.output(1)[-1] == EOS_ID
    assert finish_of(workplace, 0) & 0xFF == FinishReason.STOP


def test_samplers_that_take_turns_give_the_text_of_one(workplace: Workplace) -> None:
    grammar = Grammar("regex", "[a-z]{20}")
    workplace.fill_slot(0, params(grammar), PROMPT)
    workplace.fill_slot(1, params(grammar), PROMPT)
    first = born(workplace)
    alone = play(workplace, [first], [0])
    both = [first, born(workplace, "sampler-1")]
    assert play(workplace, both, [1], first=100) == alone


def test_a_replacement_goes_on_where_its_predecessor_died(workplace: Workplace) -> None:
    grammar = Grammar("regex", "[a-z]{20}")
    for slot in (0, 1):
        workplace.fill_slot(slot, params(grammar), PROMPT)
    alone = play(workplace, [born(workplace)], [0])
    predecessor = born(workplace, incarnation=2)
    for step in range(100, 107):
        publish(workplace, step, [(next_row(workplace, 1), FORBIDDEN)])
        predecessor.turn(0)
    publish(workplace, 107, [(next_row(workplace, 1), FORBIDDEN)])  # it dies with this one open
    replacement = born(workplace, incarnation=3)
    while workplace.sampled.done(107, 0) != 107:
        replacement.turn(0)
    assert play(workplace, [replacement], [1], first=108) == alone


def test_a_new_ring_does_not_change_the_text(workplace: Workplace) -> None:
    grammar = Grammar("regex", "[a-z]{9}")
    for slot in (0, 1):
        workplace.fill_slot(slot, params(grammar), PROMPT)
    sampler = born(workplace)
    alone = play(workplace, [sampler], [0])
    publish(workplace, 20, [(next_row(workplace, 1), FORBIDDEN)])
    sampler.turn(0)
    workplace.replace_ring(["sampler-0"])
    sampler.turn(0)
    assert play(workplace, [sampler], [1]) == alone


def test_a_slot_with_another_occupant_has_another_grammar(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, params(Grammar("regex", "aaa")), PROMPT)
    assert play(workplace, [sampler], [0]) == ["aaa"]
    workplace.fill_slot(0, params(Grammar("regex", "bb")), PROMPT)
    assert play(workplace, [sampler], [0], first=50) == ["bb"]


def test_a_grammar_that_cannot_be_followed_ends_only_its_row(workplace: Workplace) -> None:
    workplace.fill_slot(0, params(Grammar("regex", "(a")), PROMPT)
    workplace.fill_slot(1, params(Grammar("regex", "ab")), PROMPT)
    _, text = play(workplace, [born(workplace)], [0, 1])
    assert finish_of(workplace, 0) & 0xFFFF == FinishReason.ERROR | RowError.GRAMMAR_SPENT << 8
    assert text == "ab"


def test_a_stop_string_and_a_cancel_end_the_text_before_its_grammar(workplace: Workplace) -> None:
    sampler = born(workplace)
    workplace.fill_slot(0, params(Grammar("regex", "[a-z]{20}")), PROMPT)
    publish(workplace, 1, [(next_row(workplace, 0), FORBIDDEN)])
    sampler.turn(0)
    workplace.slots.store(0, SlotWord.STOP, 1)
    publish(workplace, 2, [(next_row(workplace, 0), FORBIDDEN)])
    sampler.turn(0)
    assert finish_of(workplace, 0) & 0xFF == FinishReason.STOP_STRING


@pytest.mark.slow
def test_following_a_grammar_loads_neither_numpy_nor_torch() -> None:
    code = (
        "import sys\n"
        "from hybridgen.config import Config\n"
        "from hybridgen.request import Grammar\n"
        "from hybridgen.sampling.lazy_matchers import LazyMatchers\n"
        "import hybridgen.workers.sampler\n"
        "assert 'llguidance' not in sys.modules\n"
        "LazyMatchers('mock', Config()).start(Grammar('json_object')).compute_bitmask()\n"
        "print({'numpy', 'torch', 'tokenizers'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
