"""Masks that take long to work out: whoever does it still shows that it lives."""

from __future__ import annotations

from typing import Any

from hybridgen.ipc.slot_table import SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.request import Grammar, SamplingParams
from hybridgen.sampling import parameters
from hybridgen.sampling.row_masks import REPLAYED_PER_BEAT, RowMasks

NUM_SLOTS, MAX_LEN, EPOCH = 3, 1024, 1


class Matcher:
    """Takes whatever comes."""

    def __init__(self, heard: list[object]) -> None:
        self._heard = heard

    def consume_tokens(self, ids: list[int]) -> None:
        self._heard.append(ids)

    def compute_bitmask(self) -> bytes:
        self._heard.append("mask")
        return b"\xff"

    def is_error(self) -> bool:
        return False


class Scene:
    """Slots with a grammar, and a lane that lacks their masks at a position."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        slots = SlotTable.in_memory(NUM_SLOTS, MAX_LEN)
        params = SamplingParams(grammar=Grammar("regex", ".*"))
        for slot in range(NUM_SLOTS):
            slots.store(slot, SlotWord.EPOCH, EPOCH)
            grammar_into = slots.grammar(slot)
            parameters.pack(params, (), 1, into=slots.parameters(slot), grammar_into=grammar_into)
        tokens = TokenStore.in_memory(NUM_SLOTS, MAX_LEN)
        tokens.write(0, 0, range(MAX_LEN))
        matchers: Any = self
        self.masks = RowMasks(slots, tokens, matchers, beat=lambda: self.heard.append("beat"))

    def start(self, _grammar: Grammar) -> Matcher:
        return Matcher(self.heard)

    def fill(self, *due: tuple[int, int]) -> None:
        lane: Any = Lane([(slot, EPOCH, position) for slot, position in due])
        self.masks.fill(lane, 1)


class Lane:
    def __init__(self, due: list[tuple[int, int, int]]) -> None:
        self._due = due

    def due_masks(self, _step: int) -> list[tuple[int, int, int]]:
        return self._due

    def set_mask(self, *what: object) -> None:
        assert None not in what


def test_there_is_a_beat_behind_each_mask() -> None:
    scene = Scene()
    scene.fill(*[(slot, 0) for slot in range(NUM_SLOTS)])
    assert scene.heard == ["mask", "beat"] * NUM_SLOTS


def test_a_long_text_is_replayed_in_pieces_with_beats_between() -> None:
    scene = Scene()
    scene.fill((0, 2 * REPLAYED_PER_BEAT + 1))
    pieces = [piece for piece in scene.heard if isinstance(piece, list)]
    assert [len(piece) for piece in pieces] == [REPLAYED_PER_BEAT, REPLAYED_PER_BEAT, 1]
    assert [id_ for piece in pieces for id_ in piece] == list(range(2 * REPLAYED_PER_BEAT + 1))
    kinds = [heard if isinstance(heard, str) else "piece" for heard in scene.heard]
    assert kinds == ["piece", "beat", "piece", "beat", "piece", "mask", "beat"]
