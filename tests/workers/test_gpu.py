"""The compute ring with the mock engine: every text is the one a single process would make."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from hybridgen.errors import DeviceLost
from hybridgen.formats.mock_model import VOCAB_SIZE
from hybridgen.ipc.board import ProcessState
from hybridgen.ipc.logit_ring import RowHeader
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.messages import (
    AttachWorker,
    DrainWorker,
    GrantBlocks,
    JoinBatch,
    RetireSlot,
    SlotEvent,
    StepReport,
    WorkerAttached,
)
from hybridgen.models.mock import MockEngine
from hybridgen.request import SamplingParams
from hybridgen.scheduler.batch_row import HEADER_DTYPE
from hybridgen.workers import gpu
from hybridgen.workers.gpu import ComputeRing
from hybridgen.workers.sampler import Sampler
from tests.support.eventually import eventually
from tests.workers.crew import Crew
from tests.workers.steps import mock_text
from tests.workers.workplace import FactSocket, Workplace

NUM_BLOCKS = 64
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=11, ignore_eos=True)
LOUD = SamplingParams(temperature=1.3, seed=2**63 + 5, ignore_eos=True, presence_penalty=0.5)
NUM_TOKENS = 20


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report is read a moment after the turn that sent it; do not rest for a second then."""
    monkeypatch.setattr(gpu, "IDLE_WAIT_S", 0.005)


def test_a_device_that_is_lost_while_loading_is_named(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    context = workplace.context("gpu-0")
    monkeypatch.setattr(gpu, "WorkerContext", lambda *_: context)
    monkeypatch.setattr(gpu, "_make_ring", fail)
    with pytest.raises(DeviceLost):
        gpu.run(context.spec, context.control)


class Device:
    """A compute ring, what the coscheduler tells it, and the blocks that it hands out."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        self.coscheduler: FactSocket = place.open_coscheduler()
        self.context = place.context("gpu-0")
        self.ring = ComputeRing(self.context, MockEngine(VOCAB_SIZE, NUM_BLOCKS))
        place.adopt(self.ring)
        self.ring.introduce()
        self.coscheduler.wait_for(WorkerAttached)
        self._num_given = 0

    def blocks(self, count: int) -> list[int]:
        """Fresh ones, in an order that nobody would guess."""
        first, self._num_given = self._num_given, self._num_given + count
        return [(7 * number + 3) % NUM_BLOCKS for number in range(first, first + count)]

    def join(self, slot: int, num_blocks: int | None = None, epoch: int | None = None) -> JoinBatch:
        load = self.place.slots.load
        num_tokens = load(slot, SlotWord.PROMPT_LEN) + load(slot, SlotWord.GENERATED)
        most = -(-load(slot, SlotWord.MAX_LEN) // 16)
        order = JoinBatch(
            slot=slot,
            epoch=load(slot, SlotWord.EPOCH) if epoch is None else epoch,
            detokenizer=0,
            num_tokens=num_tokens,
            num_cached=0,
            blocks=self.blocks(most if num_blocks is None else num_blocks),
        )
        self.coscheduler.send("gpu-0", order)
        return order

    def events(self, name: str) -> list[SlotEvent]:
        """All events of one kind that were reported so far."""
        return [e for report in self.coscheduler.of(StepReport) for e in getattr(report, name)]

    def turn_until(self, predicate: Callable[[], object], max_turns: int = 500) -> None:
        for _ in range(max_turns):
            if predicate():
                return
            self.ring.turn()
        raise AssertionError("the ring did not come there")

    def run(self, *slots: int) -> None:
        """Until all these rows are reported finished."""
        self.turn_until(lambda: {e.slot for e in self.events("finished")} >= set(slots))


def staff(place: Workplace, crew: Crew, *lanes: int, incarnation: int = 1) -> None:
    """Start samplers."""
    for lane in lanes:
        context = place.context(f"sampler-{lane}", incarnation=incarnation)
        sampler = Sampler(context)
        context.ready()
        crew.hire(sampler.turn)


def fill(place: Workplace) -> dict[int, list[int]]:
    """Three requests, one with a prompt of several chunks; the texts that they must get."""
    prompts = {0: [1, 2, 3], 1: list(range(100, 150)), 4: [65] * 17}
    params = {0: GREEDY, 1: SEEDED, 4: LOUD}
    for slot, prompt in prompts.items():
        place.fill_slot(slot, params[slot], prompt, max_tokens=NUM_TOKENS)
    return {slot: mock_text(prompts[slot], params[slot], NUM_TOKENS) for slot in prompts}


def outputs(place: Workplace, *slots: int) -> dict[int, list[int]]:
    return {slot: place.output(slot) for slot in slots}


def test_greedy_and_seeded_texts_equal_those_of_a_single_process(workplace: Workplace) -> None:
    device = Device(workplace)
    expected = fill(workplace)
    with Crew() as crew:
        staff(workplace, crew, 0, 1)
        for slot in expected:
            device.join(slot)
        device.run(*expected)
    assert outputs(workplace, *expected) == expected
    assert {e.slot for e in device.events("prefilled")} == set(expected)
    counters = workplace.snapshot("gpu-0").counters
    assert counters["prefill_tokens"] == 3 + 50 + 17
    assert counters["rows"] == 3 * (NUM_TOKENS - 1)
    assert counters["sample_wait_ns"] > 0
    done = [workplace.snapshot(f"sampler-{lane}").counters["tokens"] for lane in (0, 1)]
    assert min(done) > 0
    assert sum(done) == 3 * NUM_TOKENS


def test_a_text_ends_at_end_of_text(workplace: Workplace) -> None:
    device = Device(workplace)
    params = SamplingParams(temperature=0.0, logit_bias={257: 100.0}, min_tokens=3)
    workplace.fill_slot(0, params, [5, 6], max_tokens=50)
    with Crew() as crew:
        staff(workplace, crew, 0, 1)
        device.join(0)
        device.run(0)
    assert workplace.output(0) == mock_text([5, 6], params, 50)
    assert len(workplace.output(0)) == 4


def wait_for_rows(place: Workplace, lane: int) -> list[RowHeader]:
    """The rows of a lane in the first step that has any for it."""
    rows: list[RowHeader] = []

    def are_there() -> bool:
        rows[:] = [row for row in place.logits.rows(place.logits.latest) if row.lane == lane]
        return bool(rows)

    eventually(are_there, 5.0)
    return rows


def test_the_rows_of_a_dead_sampler_go_to_the_one_that_is_alive(workplace: Workplace) -> None:
    device = Device(workplace)
    expected = fill(workplace)
    dead = workplace.context("sampler-1")
    dead.ready()

    def die() -> None:
        wait_for_rows(workplace, lane=1)
        dead.line.set_state(ProcessState.EXITED)

    with Crew() as crew:
        staff(workplace, crew, 0)
        crew.do(die)
        for slot in expected:
            device.join(slot)
        device.run(*expected)
    assert outputs(workplace, *expected) == expected
    assert workplace.snapshot("sampler-0").counters["tokens"] == 3 * NUM_TOKENS


def test_a_step_that_goes_out_again_moves_only_the_rows_of_who_is_gone(
    workplace: Workplace,
) -> None:
    ring = Device(workplace).ring
    contexts = [workplace.context(f"sampler-{lane}") for lane in (0, 1)]
    for context in contexts:
        context.ready()
    records = np.zeros(3, HEADER_DTYPE)
    records["lane"] = [0, 1, 1]
    ring._publish(1, records)
    assert ring._publish_again(1, records) == 2  # it came back just in time: its rows stay its
    assert not workplace.logits.is_ready(1)
    assert [row.lane for row in workplace.logits.rows(2)] == [0, 1, 1]
    contexts[1].line.set_state(ProcessState.EXITED)
    assert ring._publish_again(2, records) == 3
    assert [row.lane for row in workplace.logits.rows(3)] == [0, 0, 0]


def test_a_token_that_the_dead_sampler_had_written_is_not_chosen_again(
    workplace: Workplace,
) -> None:
    device = Device(workplace)
    expected = fill(workplace)
    dead = workplace.context("sampler-1")
    dead.ready()

    def die_before_saying_so() -> None:
        row = wait_for_rows(workplace, lane=1)[0]
        workplace.generate(row.slot, [expected[row.slot][len(workplace.output(row.slot))]])
        dead.line.set_state(ProcessState.EXITED)

    with Crew() as crew:
        staff(workplace, crew, 0)
        crew.do(die_before_saying_so)
        for slot in expected:
            device.join(slot)
        device.run(*expected)
    assert outputs(workplace, *expected) == expected
    assert workplace.snapshot("sampler-0").counters["tokens"] == 3 * NUM_TOKENS - 1


def test_without_any_sampler_the_step_waits_for_a_replacement(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "SAMPLER_WAIT_US", 500)
    device = Device(workplace)
    expected = fill(workplace)
    num_waits = itertools.count()
    patience = []
    monkeypatch.setattr(device.context, "read_orders", lambda: patience.append(next(num_waits)))
    for lane in (0, 1):
        workplace.context(f"sampler-{lane}").line.set_state(ProcessState.EXITED)
    replacement = workplace.context("sampler-0", incarnation=2)
    sampler = Sampler(replacement)

    def come_late(timeout_s: float) -> None:
        if workplace.logits.latest > 0 and len(patience) > 5:
            replacement.line.set_state(ProcessState.READY)
            sampler.turn(timeout_s)

    with Crew() as crew:
        crew.hire(come_late)
        device.join(0)
        device.run(0)
    assert workplace.output(0) == expected[0]
    assert workplace.logits.latest == NUM_TOKENS  # no step was published twice


def test_a_replacement_gets_rows_again(workplace: Workplace) -> None:
    device = Device(workplace)
    expected = fill(workplace)
    workplace.context("sampler-1").line.set_state(ProcessState.EXITED)
    with Crew() as crew:
        staff(workplace, crew, 0)
        device.join(0)
        device.turn_until(lambda: len(workplace.output(0)) > 3)
        assert {row.lane for row in workplace.logits.rows(workplace.logits.latest)} == {0}
        staff(workplace, crew, 1, incarnation=2)
        device.join(1)
        device.run(0, 1)
    assert outputs(workplace, 0, 1) == {slot: expected[slot] for slot in (0, 1)}
    assert workplace.snapshot("sampler-1").counters["tokens"] > 0


def test_a_row_of_an_earlier_occupant_leaves_without_a_trace(workplace: Workplace) -> None:
    device = Device(workplace)
    old = workplace.fill_slot(0, GREEDY, [1, 2])
    workplace.fill_slot(0, GREEDY, [3, 4])
    with Crew() as crew:
        staff(workplace, crew, 0, 1)
        device.join(0, epoch=old)
        device.run(0)
    assert device.events("finished") == [SlotEvent(0, old)]
    assert workplace.output(0) == []
    assert workplace.tokens.read(0, 0, 4) == [3, 4, 0, 0]


def test_a_row_without_room_waits_for_blocks_and_goes_on_with_the_same_text(
    workplace: Workplace,
) -> None:
    device = Device(workplace)
    expected = fill(workplace)
    with Crew() as crew:
        staff(workplace, crew, 0, 1)
        order = device.join(0, num_blocks=1)
        device.turn_until(lambda: len(workplace.output(0)) == 14)
        assert [event.slot for event in device.events("starving")] == [0]
        grant = GrantBlocks(0, order.epoch, 1, device.blocks(2))
        device.coscheduler.send("gpu-0", grant)
        device.run(0)
    assert workplace.output(0) == expected[0]


def test_a_retired_row_is_reported_and_can_join_again(workplace: Workplace) -> None:
    device = Device(workplace)
    expected = fill(workplace)
    with Crew() as crew:
        staff(workplace, crew, 0, 1)
        epoch = device.join(1).epoch
        device.turn_until(lambda: len(workplace.output(1)) >= 5)
        device.coscheduler.send("gpu-0", RetireSlot(1, epoch))
        device.turn_until(lambda: device.events("retired"))
        assert device.events("retired") == [SlotEvent(1, epoch)]
        assert len(workplace.output(1)) < NUM_TOKENS
        device.join(1)
        device.run(1)
    assert workplace.output(1) == expected[1]


def test_says_which_rows_it_holds_when_a_new_coscheduler_asks(workplace: Workplace) -> None:
    device = Device(workplace)
    fill(workplace)
    with Crew() as crew:
        staff(workplace, crew, 0, 1)
        order = device.join(1)
        device.turn_until(lambda: len(workplace.output(1)) >= 5)
        device.coscheduler.send("gpu-0", AttachWorker(3))
        device.turn_until(lambda: len(device.coscheduler.of(WorkerAttached)) > 1)
    attached = device.coscheduler.of(WorkerAttached)
    assert [fact.answers for fact in attached] == [0, 3]
    assert [fact.num_blocks for fact in attached] == [NUM_BLOCKS] * 2
    assert attached[0].rows == []
    (row,) = attached[1].rows
    assert (row.slot, row.epoch, row.blocks) == (1, order.epoch, order.blocks)
    assert row.num_computed >= 50


def test_a_drain_order_ends_the_wait_for_a_sampler(workplace: Workplace) -> None:
    context = workplace.context("gpu-0")
    workplace.order("gpu-0", DrainWorker())
    coscheduler = workplace.open_coscheduler()
    ring = ComputeRing(context, MockEngine(VOCAB_SIZE, NUM_BLOCKS))
    workplace.adopt(ring)
    ring.introduce()
    coscheduler.wait_for(WorkerAttached)
    epoch = workplace.fill_slot(0, GREEDY, [1])
    order = JoinBatch(slot=0, epoch=epoch, detokenizer=0, num_tokens=1, num_cached=0, blocks=[0])
    coscheduler.send("gpu-0", order)
    eventually(lambda: ring.turn() or context.should_exit, 5.0)
    assert workplace.output(0) == []
