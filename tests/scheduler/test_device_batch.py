"""The batch of a device that runs ahead, against a simulated device."""

from __future__ import annotations

import collections
import random

import numpy as np
import pytest

from hybridgen.errors import InternalError
from hybridgen.ipc.sampled_ring import RowFlag
from hybridgen.kvcache.kv_window import KvWindow
from hybridgen.messages import (
    ErrorInfo,
    GrantBlocks,
    JoinBatch,
    RetireSlot,
    RowProgress,
    SlotEvent,
    StepReport,
)
from hybridgen.scheduler.device_batch import DeviceBatch
from hybridgen.scheduler.row_parameters import BASE_WORD
from tests.support.simulated_device import BLOCK_SIZE, SimulatedDevice, Text

MAX_MODEL_LEN = 40
NUM_BLOCKS = 40
SHORTAGE = ErrorInfo("out_of_device_memory", "no memory for it", {"limit": "1 MiB free"})


class Stage:
    """A batch, its device, and a coscheduler that gives every freed block away at once.

    Some prompts begin as that of another row, and share the blocks that are reported as computed.
    """

    def __init__(
        self,
        seed: int,
        num_ahead: int,
        *,
        max_rows: int = 5,
        memory_faults: float = 0.0,
        sharing: float = 0.0,
        window: int = 0,
    ) -> None:
        self.random = random.Random(seed)
        self.num_ahead = num_ahead
        self.max_rows = max_rows
        self.batch = DeviceBatch(
            max_rows=max_rows,
            block_size=BLOCK_SIZE,
            max_model_len=MAX_MODEL_LEN,
            num_lanes=2,
            num_logits_slots=2,
        )
        self.window = KvWindow(window, BLOCK_SIZE, piece_tokens=4)
        self.device = SimulatedDevice(self.batch.layout, NUM_BLOCKS, window)
        self.num_freed: collections.Counter[tuple[int, int]] = collections.Counter()
        self.free = list(range(NUM_BLOCKS))
        self.held: dict[tuple[int, int], list[int]] = {}  # blocks of each row not reported off
        self.holders: collections.Counter[int] = collections.Counter()  # by block
        self.num_reported: dict[tuple[int, int], int] = {}  # tokens of prompts, where held
        self.sharing = sharing  # share of prompts that begin as another
        self.num_shared = 0
        self.retiring: set[tuple[int, int]] = set()
        self.memory_faults = memory_faults  # share of pieces and steps that the device refuses
        self.num_overflowed = 0
        self.done: list[Text] = []
        self.step = 0
        self.epoch = 0

    def join(self) -> None:
        free_slots = set(range(self.max_rows)) - {slot for slot, _ in self.held}
        num_prompt = self.random.randint(1, 34 if self.window.num_tokens else 20)
        begin = self.beginning()
        num_prompt = max(num_prompt, len(begin) * BLOCK_SIZE + 1)
        num_blocks = self.window.row_blocks(num_prompt) - len(begin)
        if not free_slots or num_blocks > len(self.free):
            return
        self.epoch += 1
        key = (min(free_slots), self.epoch)
        ids = [self.random.randrange(1000) for _ in range(num_prompt)]
        ids[: len(begin) * BLOCK_SIZE] = self.share(key, begin)
        most = MAX_MODEL_LEN if self.random.random() < 0.2 else num_prompt + 12
        num_final = min(MAX_MODEL_LEN, self.random.randint(num_prompt + 1, most))
        self.device.texts[key] = Text(key, ids, num_final)
        self.held[key] = [*begin, *self.take(num_blocks)]
        self.batch.join(self.order(key, len(begin) * BLOCK_SIZE))

    def beginning(self) -> list[int]:
        """Blocks to share."""
        if self.random.random() >= self.sharing or not self.held:
            return []
        self.lender = self.random.choice(list(self.held))
        return self.held[self.lender][: self.num_reported.get(self.lender, 0) // BLOCK_SIZE]

    def share(self, key: tuple[int, int], begin: list[int]) -> list[int]:
        """Let the row hold these blocks of the lender, too; their ids."""
        if not begin:
            return []
        self.num_shared += len(begin)
        self.holders.update(begin)
        writers = [self.device.writer(self.lender, index) for index in range(len(begin))]
        self.device.writers[key] = writers
        return self.device.texts[self.lender].ids[: len(begin) * BLOCK_SIZE]

    def order(self, key: tuple[int, int], num_cached: int = 0) -> JoinBatch:
        num_tokens = len(self.device.texts[key].ids)
        self.num_reported[key] = num_cached
        return JoinBatch(*key, detokenizer=0, num_tokens=num_tokens, num_cached=num_cached,
                         blocks=list(self.held[key]))  # fmt: skip

    def take(self, count: int) -> list[int]:
        self.random.shuffle(self.free)
        taken, self.free = self.free[:count], self.free[count:]
        self.holders.update(taken)
        return taken

    def give_back(self, blocks: list[int]) -> None:
        self.holders.subtract(blocks)
        self.free += [block for block in blocks if self.holders[block] == 0]

    def grant(self, key: tuple[int, int]) -> None:
        if key in self.retiring or key not in self.held:
            return
        first = len(self.held[key])
        most = -(-(self.device.texts[key].num_final - 1) // BLOCK_SIZE)
        blocks = self.take(min(self.random.randint(1, 2), most - first, len(self.free)))
        self.held[key] += blocks
        if blocks:
            self.batch.grant(GrantBlocks(*key, first, blocks))

    def slide(self, key: tuple[int, int], num_computed: int) -> None:
        """Give away what the row does not read any more, at once."""
        if key in self.held and key not in self.retiring:
            first = self.window.first_kept(num_computed)
            self.give_back(self.held[key][self.num_freed[key] : first])
            self.num_freed[key] = max(first, self.num_freed[key])

    def drop(self, key: tuple[int, int]) -> None:
        self.give_back(self.held.pop(key)[self.num_freed.pop(key, 0) :])

    def retire(self) -> None:
        keys = [key for key in self.held if key not in self.retiring]
        if keys:
            key = self.random.choice(keys)
            self.retiring.add(key)
            self.batch.retire(RetireSlot(*key))
            if self.random.random() < 0.5:
                self.batch.retire(RetireSlot(*key))

    def cancel(self) -> None:
        if self.held:
            self.device.texts[self.random.choice(list(self.held))].is_cancelled = True

    def plan(self) -> None:
        while len(self.device.steps) < self.num_ahead:
            plan = self.batch.plan_step(self.step + 1)
            if plan is None:
                return
            if self.random.random() < self.memory_faults:
                self.batch.give_back(SHORTAGE)
                return
            self.step += 1
            self.device.steps.append(plan)

    def prefill(self) -> None:
        piece = self.batch.next_prefill(self.random.randint(1, 30))
        if piece:
            self.device.pieces.append(piece)

    def run_piece(self) -> None:
        if not self.device.pieces:
            return
        if len(self.device.pieces) == 1 and self.random.random() < self.memory_faults:
            self.batch.prefill_failed(self.device.pieces.popleft(), SHORTAGE)
        else:
            self.batch.prefill_done(self.device.run_piece())

    def run_step(self) -> None:
        if self.device.steps:
            plan, results = self.device.run_step()
            ids, flags = np.asarray(results, np.int64).T
            self.batch.complete(plan.step, ids.astype(np.int32), flags.astype(np.uint32))

    def read_report(self) -> None:
        report = self.batch.take_report(self.step)
        if report is None:
            return
        for progress in report.advanced:
            key = (progress.slot, progress.epoch)
            self.num_reported[key] = progress.num_tokens
            self.slide(key, progress.num_tokens)
            self.grant(key)
        for event in report.prefilled:
            text = self.device.texts[event.slot, event.epoch]
            self.num_reported[text.key] = text.num_prompt
        for progress in report.starving:
            key = (progress.slot, progress.epoch)
            self.slide(key, progress.num_tokens)
            if self.random.random() < 0.4:  # else too late: the row is held out
                self.grant(key)
        for event in (*report.finished, *report.retired):
            self.off((event.slot, event.epoch))
        for event in report.overflowed:
            self.join_again((event.slot, event.epoch))

    def join_again(self, key: tuple[int, int]) -> None:
        if key in self.retiring or key not in self.held:  # confirmed for itself
            return
        self.num_overflowed += 1
        self.drop(key)
        self.device.writers.pop(key, None)
        self.held[key] = self.take(-(-len(self.device.texts[key].ids) // BLOCK_SIZE))
        self.batch.join(self.order(key))

    def off(self, key: tuple[int, int]) -> None:
        self.retiring.discard(key)
        if key in self.held:
            self.drop(key)
            self.done.append(self.device.texts[key])

    def turn(self, can_join: bool = True) -> None:
        choices = [self.prefill, self.run_piece, self.run_step, self.plan, self.read_report]
        if can_join:
            choices += [self.join, self.join]
            if self.random.random() < 0.05:
                choices += [self.retire, self.cancel]
        self.random.choice(choices)()
        if self.random.random() < 0.05:  # grants may come late, and unasked
            for key in list(self.held):
                self.grant(key)


@pytest.mark.parametrize("sharing", [0.0, 0.6])
@pytest.mark.parametrize("num_ahead", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_every_row_sees_its_own_text_whatever_the_order_of_events(seed, num_ahead, sharing):
    stage = Stage(seed, num_ahead, sharing=sharing)
    for _ in range(1500):
        stage.turn()
    for _ in range(5000):
        if not stage.held:
            break
        stage.turn(can_join=False)
    assert not stage.held
    assert stage.batch.is_idle
    assert sorted(stage.free) == list(range(NUM_BLOCKS))
    assert len(stage.done) > 20
    whole = [text for text in stage.done if len(text.ids) == text.num_final]
    assert len(whole) > 10
    assert (stage.num_shared > 0) is (sharing > 0)


@pytest.mark.parametrize("num_ahead", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_blocks_out_of_the_window_are_given_away_while_steps_and_pieces_are_in_flight(
    seed, num_ahead
):
    stage = Stage(seed, num_ahead, window=6)
    for _ in range(1500):
        stage.turn()
    for _ in range(5000):
        if not stage.held:
            break
        stage.turn(can_join=False)
    assert not stage.held
    assert stage.batch.is_idle
    assert sorted(stage.free) == list(range(NUM_BLOCKS))
    assert len([text for text in stage.done if len(text.ids) == text.num_final]) > 10


@pytest.mark.parametrize("num_ahead", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_rows_that_a_device_had_no_memory_for_join_again_where_they_were(seed, num_ahead):
    stage = Stage(seed, num_ahead, memory_faults=0.1, sharing=0.5)
    for _ in range(1500):
        stage.turn()
    stage.memory_faults = 0.0
    for _ in range(5000):
        if not stage.held:
            break
        stage.turn(can_join=False)
    assert not stage.held
    assert stage.batch.is_idle
    assert sorted(stage.free) == list(range(NUM_BLOCKS))
    assert stage.num_overflowed > 10
    assert len([text for text in stage.done if len(text.ids) == text.num_final]) > 10


def test_a_row_that_overflowed_is_reported_once_no_step_has_it():
    batch = opened(make(), join(0, 3, [0, 1]))
    batch.join(join(1, 4, [2, 3]))
    (chunk,) = batch.next_prefill(100)
    batch.prefill_failed([chunk], SHORTAGE)
    assert batch.plan_step(2) is not None
    batch.give_back(SHORTAGE)
    report = batch.take_report(1)
    assert report is not None
    assert report.overflowed == []  # step 1 is still in flight
    batch.complete(1, np.array([5]), np.array([0]))
    report = batch.take_report(1)
    assert report is not None
    assert report.overflowed == [SlotEvent(1, 1), SlotEvent(0, 1)]
    assert report.memory_error is not None
    assert report.memory_error.fields["limit"] == "1 MiB free"


def test_retiring_a_row_that_just_overflowed_is_confirmed_and_nothing_else():
    batch = opened(make(), join(0, 3, [0, 1]))
    assert batch.plan_step(2) is not None
    batch.give_back(SHORTAGE)
    batch.retire(RetireSlot(0, 1))
    batch.complete(1, np.array([5]), np.array([0]))
    report = batch.take_report(1)
    assert report is not None
    assert (report.overflowed, report.retired) == ([], [SlotEvent(0, 1)])


def make() -> DeviceBatch:
    return DeviceBatch(max_rows=4, block_size=4, max_model_len=64, num_lanes=2, num_logits_slots=4)


def join(slot: int, num_tokens: int, blocks: list[int], epoch: int = 1) -> JoinBatch:
    return JoinBatch(slot, epoch, slot + 10, num_tokens, 0, blocks)


def opened(batch: DeviceBatch, *rows: JoinBatch) -> DeviceBatch:
    """With the rows' prompts in, and step 1 planned, which chooses their first tokens."""
    for row in rows:
        batch.join(row)
    while piece := batch.next_prefill(100):
        batch.prefill_done(piece)
    plan = batch.plan_step(1)
    assert plan is not None
    assert (plan.num_decode, plan.num_rows) == (0, len(rows))
    return batch


def answer(batch: DeviceBatch, step: int, *flags: int) -> None:
    batch.complete(step, np.arange(len(flags), dtype=np.int32), np.asarray(flags, np.uint32))


def report(batch: DeviceBatch) -> StepReport:
    found = batch.take_report(1)
    assert found is not None
    return found


def test_a_steady_batch_writes_nothing_to_the_device():
    batch = opened(make(), join(0, 3, [0, 1, 2, 3]), join(1, 5, [4, 5, 6, 7]))
    second = batch.plan_step(2)
    assert second is not None
    # Position, origin and blocks of each row; their tokens come from the same rows of step 1.
    assert second.indices.tolist() == [0, 4, 8, 9, 10, 11, 1, 5, 24, 25, 26, 27]
    assert second.values.tolist() == [3, 0, 0, 1, 2, 3, 5, 1, 4, 5, 6, 7]
    for step in range(3, 7):
        answer(batch, step - 2, 0, 0)
        plan = batch.plan_step(step)
        assert plan is not None
        assert len(plan.indices) == 0
        assert plan.records["position"].tolist() == [step + 2, step + 4]


def test_a_finished_row_runs_one_wasted_step_and_is_reported_after_it():
    batch = opened(make(), join(0, 3, [0, 1]), join(1, 3, [2, 3]))
    batch.take_report(1)
    assert batch.plan_step(2) is not None
    answer(batch, 1, RowFlag.FINISHED, 0)
    assert report(batch).finished == [] if batch.take_report(1) else True
    third = batch.plan_step(3)
    assert third is not None
    assert third.records["slot"].tolist() == [1]
    # The other row took its place; its token is row 1 of step 2, and row 1 is idle now.
    assert (third.indices[:2].tolist(), third.values[:2].tolist()) == ([0, 4], [4, 1])
    assert (third.indices[-1], third.values[-1]) == (1, -1)
    answer(batch, 2, RowFlag.FINISHED | RowFlag.NO_TOKEN, 0)
    assert report(batch).finished == [SlotEvent(0, 1)]


def test_a_row_retired_in_flight_is_confirmed_once_its_step_is_over():
    batch = opened(make(), join(0, 3, [0, 1]))
    batch.take_report(1)
    batch.retire(RetireSlot(0, 1))
    batch.retire(RetireSlot(0, 1))
    assert batch.plan_step(2) is None
    assert batch.take_report(1) is None
    assert not batch.is_idle
    answer(batch, 1, 0)
    assert report(batch).retired == [SlotEvent(0, 1)]
    assert batch.is_idle


def test_retiring_a_row_that_is_not_there_is_confirmed_at_once():
    batch = make()
    batch.retire(RetireSlot(3, 9))
    assert report(batch).retired == [SlotEvent(3, 9)]


def test_a_row_without_room_waits_for_its_token_and_its_blocks():
    batch = opened(make(), join(0, 4, [5]))
    batch.take_report(1)
    assert batch.plan_step(2) is None  # position 4 has no block
    assert report(batch).starving == [RowProgress(0, 1, 4)]
    batch.grant(GrantBlocks(0, 1, 1, [6]))
    assert batch.plan_step(2) is None  # the token of position 4 is not known to the host
    answer(batch, 1, 0)
    plan = batch.plan_step(2)
    assert plan is not None
    assert plan.values.tolist() == [4, -1 - 0, 5, 6]  # position, token id 0, blocks


@pytest.mark.parametrize("step", [2, 2**31 - 1, 2**31 + 5, 2**32 + 7])
def test_a_device_finds_positions_by_the_number_of_the_step_however_large_it_is(step):
    batch = opened(make(), join(0, 3, [0, 1]))
    answer(batch, 1, 0)
    batch.join(join(1, 9, [2, 3, 4]))
    batch.prefill_done(batch.next_prefill(100))
    plan = batch.plan_step(step)
    assert plan is not None
    assert plan.parameters is not None
    positions = (plan.parameters[:, BASE_WORD].astype(np.int64) + step) % 2**32
    assert positions.tolist() == plan.records["position"].tolist() == [4, 9]


def test_answers_must_fit_the_oldest_step():
    batch = opened(make(), join(0, 3, [0, 1]))
    with pytest.raises(InternalError, match="oldest"):
        answer(batch, 2, 0)
    with pytest.raises(InternalError, match="number of results"):
        answer(batch, 1, 0, 0)


def test_a_row_that_does_not_fit_is_refused():
    batch = make()
    with pytest.raises(InternalError, match="does not fit"):
        batch.join(join(0, 65, [0]))
    with pytest.raises(InternalError, match="gap"):
        opened(batch, join(0, 3, [0])).grant(GrantBlocks(0, 1, 2, [1]))


def test_a_prompt_waits_for_a_buffer_for_its_logits():
    batch = DeviceBatch(max_rows=4, block_size=4, max_model_len=64, num_lanes=1, num_logits_slots=1)
    batch.join(join(0, 3, [0]))
    batch.join(join(1, 3, [1]))
    piece = batch.next_prefill(8)
    assert [chunk.slot for chunk in piece] == [0]
    assert batch.next_prefill(8) == []
    batch.prefill_done(piece)
    assert batch.plan_step(1) is not None
    assert batch.next_prefill(8) == []
    answer(batch, 1, 0)
    assert [chunk.slot for chunk in batch.next_prefill(8)] == [1]


def test_a_piece_holds_chunks_of_several_rows_and_all_their_logits():
    batch = make()
    for slot in range(3):
        batch.join(join(slot, 3 + slot, [2 * slot, 2 * slot + 1]))
    assert batch.num_waiting_tokens == 3 + 4 + 5
    piece = batch.next_prefill(8)
    assert [(c.slot, c.start, c.stop, c.is_last) for c in piece] == [
        (0, 0, 3, True),
        (1, 0, 4, True),
    ]
    assert batch.num_waiting_tokens == 5
    assert len({c.logits_slot for c in piece}) == 2
    batch.prefill_done(piece)
    plan = batch.plan_step(1)
    assert plan is not None
    assert plan.logits_slots == [c.logits_slot for c in piece]
    assert [event.slot for event in report(batch).prefilled] == [0, 1]


def test_a_row_that_leaves_before_its_turn_is_in_no_piece():
    batch = make()
    batch.join(join(0, 3, [0]))
    batch.join(join(1, 4, [1]))
    batch.retire(RetireSlot(0, 1))
    assert batch.num_waiting_tokens == 4
    assert [chunk.slot for chunk in batch.next_prefill(8)] == [1]
    assert report(batch).retired == [SlotEvent(0, 1)]


def test_a_prompt_longer_than_a_piece_is_given_out_in_order_and_in_turns():
    batch = make()
    batch.join(join(0, 10, [0, 1, 2]))
    batch.join(join(1, 3, [3]))
    pieces = [batch.next_prefill(4) for _ in range(4)]
    assert [[(c.slot, c.start, c.stop, c.is_last) for c in piece] for piece in pieces] == [
        [(0, 0, 4, False)],
        [(1, 0, 3, True), (0, 4, 5, False)],
        [(0, 5, 9, False)],
        [(0, 9, 10, True)],
    ]


def test_a_prompt_is_computed_from_where_the_cache_ends_and_its_progress_is_told():
    batch = make()
    batch.join(JoinBatch(0, 1, 0, num_tokens=14, num_cached=8, blocks=[5, 6, 0, 1]))
    (first,), (last,) = batch.next_prefill(4), batch.next_prefill(4)
    assert [(c.start, c.stop, c.is_last) for c in (first, last)] == [(8, 12, False), (12, 14, True)]
    assert first.blocks.tolist() == [5, 6, 0, 1]
    batch.prefill_done([first])
    assert report(batch).advanced == [RowProgress(0, 1, 12)]
    batch.prefill_done([last])
    found = report(batch)
    assert (found.advanced, found.prefilled) == ([], [SlotEvent(0, 1)])


def test_the_progress_of_a_row_that_left_is_not_told():
    batch = make()
    batch.join(join(0, 10, [0, 1, 2]))
    piece = batch.next_prefill(4)
    batch.retire(RetireSlot(0, 1))
    batch.prefill_done(piece)
    found = report(batch)
    assert (found.advanced, found.retired) == ([], [SlotEvent(0, 1)])
