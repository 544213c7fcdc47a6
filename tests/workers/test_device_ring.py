"""The compute ring of a device that runs ahead, with real samplers and a device made of threads."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hybridgen.config import Config, DeviceSection, PoolSection, SchedulerSection
from hybridgen.formats.mock_model import EOS_ID, token_bytes
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.messages import (
    DrainWorker,
    GrantBlocks,
    JoinBatch,
    RetireSlot,
    RowProgress,
    StepReport,
    WorkerAttached,
)
from hybridgen.request import FinishReason, Grammar, SamplingParams
from hybridgen.scheduler import prefill_budget
from hybridgen.scheduler.device_row import StateLayout
from hybridgen.workers import device_ring
from hybridgen.workers.device_ring import DeviceRing
from hybridgen.workers.sampler import Sampler
from tests.support.stream_device import StreamDevice
from tests.workers.crew import Crew
from tests.workers.steps import mock_text
from tests.workers.workplace import MAX_ROWS, Workplace

NUM_BLOCKS = 64
NUM_TOKENS = 20
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=11, ignore_eos=True)
REQUESTS = {
    0: ([1, 2, 3], GREEDY),
    1: ([(7 * i + 1) % 256 for i in range(50)], SEEDED),
    2: (list(range(100, 117)), SEEDED),
    3: ([200], GREEDY),
}


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_ring, "IDLE_WAIT_S", 0.005)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    yield from open_place(tmp_path / "run", 0)


@pytest.fixture
def cutting_place(tmp_path: Path) -> Iterator[Workplace]:
    yield from open_place(tmp_path / "run", 64)


def open_place(path: Path, cut_capacity: int) -> Iterator[Workplace]:
    handler = signal.getsignal(signal.SIGTERM)
    config = Config(
        device=DeviceSection(device="cuda"),
        scheduler=SchedulerSection(max_num_seqs=MAX_ROWS),
        pools=PoolSection(spin_us=0),
    )
    try:
        with Workplace(path, config, ring_depth=3, cut_capacity=cut_capacity) as workplace:
            yield workplace
    finally:
        signal.signal(signal.SIGTERM, handler)


class Device:
    """A ring over a device of threads, and what the coscheduler tells it."""

    def __init__(
        self, place: Workplace, max_in_flight: int = 2, *, sample_on_gpu: str = "auto"
    ) -> None:
        self.place = place
        section = msgspec.structs.replace(place.config.device, sample_on_gpu=sample_on_gpu)
        place.config = msgspec.structs.replace(place.config, device=section)
        self.coscheduler = place.open_coscheduler()
        self.context = place.context("gpu-0")
        layout = StateLayout(MAX_ROWS, 16)
        sight = (place.slots, place.tokens) if place.cut_capacity else ()
        self.engine = StreamDevice(NUM_BLOCKS, layout, max_in_flight, *sight)
        self.ring = DeviceRing(self.context, self.engine)
        place.adopt(self.ring)
        self.ring.introduce()
        self.coscheduler.wait_for(WorkerAttached)
        self._num_given = 0

    def blocks(self, count: int) -> list[int]:
        first, self._num_given = self._num_given, self._num_given + count
        return [(7 * number + 3) % NUM_BLOCKS for number in range(first, first + count)]

    def join(self, slot: int, num_blocks: int | None = None) -> JoinBatch:
        load = self.place.slots.load
        num_tokens = load(slot, SlotWord.PROMPT_LEN) + load(slot, SlotWord.GENERATED)
        most = -(-load(slot, SlotWord.MAX_LEN) // 16)
        blocks = self.blocks(most if num_blocks is None else num_blocks)
        order = JoinBatch(slot, load(slot, SlotWord.EPOCH), 0, num_tokens, 0, blocks)
        self.coscheduler.send("gpu-0", order)
        return order

    def events(self, name: str) -> list[RowProgress]:
        return [e for report in self.coscheduler.of(StepReport) for e in getattr(report, name)]

    def run(self, *slots: int) -> None:
        for _ in range(2000):
            if {e.slot for e in self.events("finished")} >= set(slots):
                return
            self.ring.turn()
        raise AssertionError("the ring did not come there")


def staff(place: Workplace, crew: Crew, *lanes: int) -> None:
    for lane in lanes:
        context = place.context(f"sampler-{lane}")
        sampler = Sampler(context)
        context.ready()
        crew.hire(sampler.turn)


def fill(place: Workplace, *slots: int) -> dict[int, list[int]]:
    for slot in slots:
        prompt, params = REQUESTS[slot]
        place.fill_slot(slot, params, prompt, max_tokens=NUM_TOKENS)
    return {slot: mock_text(*REQUESTS[slot], NUM_TOKENS) for slot in slots}


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_every_text_is_the_one_that_a_single_process_makes(place, max_in_flight):
    device = Device(place, max_in_flight)
    expected = fill(place, *REQUESTS)
    with Crew() as crew:
        staff(place, crew, 0, 1)
        for slot in expected:
            device.join(slot)
        device.run(*expected)
    assert {slot: place.output(slot) for slot in expected} == expected
    assert {e.slot for e in device.events("prefilled")} == set(expected)
    counters = place.snapshot("gpu-0").counters
    assert counters["prefill_tokens"] == 3 + 50 + 17 + 1
    done = [place.snapshot(f"sampler-{lane}").counters["tokens"] for lane in (0, 1)]
    assert sum(done) == 4 * NUM_TOKENS
    assert min(done) > 0


def serve_all(place: Workplace, sample_on_gpu: str) -> Device:
    """All requests on a device that cuts rows; their texts are checked."""
    device = Device(place, sample_on_gpu=sample_on_gpu)
    expected = fill(place, *REQUESTS)
    with Crew() as crew:
        staff(place, crew, 0, 1)
        for slot in expected:
            device.join(slot)
        device.run(*expected)
    assert {slot: place.output(slot) for slot in expected} == expected
    return device


def test_samplers_answer_from_cuts_and_read_whole_rows_where_these_do_not_do(cutting_place):
    device = serve_all(cutting_place, "false")
    engine = device.engine
    # Steps of which the host learned too late that a text had ended are made in vain.
    assert engine.num_cut >= len(REQUESTS) * NUM_TOKENS
    assert engine.num_chosen == 0
    assert engine.num_copied > 0
    counters = [cutting_place.snapshot(f"sampler-{lane}").counters for lane in (0, 1)]
    assert 0 < sum(c["cut_rows"] for c in counters) < len(REQUESTS) * NUM_TOKENS


def test_a_device_that_chooses_tokens_waits_for_no_sampler_and_copies_no_rows(cutting_place):
    device = serve_all(cutting_place, "true")
    engine = device.engine
    assert engine.num_chosen >= len(REQUESTS) * NUM_TOKENS
    assert engine.num_urgent == engine.num_copied == 0
    assert not hasattr(engine, "_awaited")


def test_a_batch_with_penalties_is_left_to_the_samplers(cutting_place):
    place = cutting_place
    device = Device(place, sample_on_gpu="true")
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5, ignore_eos=True)
    place.fill_slot(1, params, [5, 6], max_tokens=NUM_TOKENS)
    expected = fill(place, 0) | {1: mock_text([5, 6], params, NUM_TOKENS)}
    with Crew() as crew:
        staff(place, crew, 0, 1)
        device.join(0)
        device.join(1)
        device.run(0, 1)
    assert {slot: place.output(slot) for slot in expected} == expected
    assert device.engine.num_copied > 0
    assert device.engine.num_urgent >= NUM_TOKENS


def test_a_batch_with_a_grammar_is_left_to_the_samplers_and_fits_it(cutting_place):
    place = cutting_place
    device = Device(place, sample_on_gpu="true")
    params = SamplingParams(seed=3, grammar=Grammar("regex", "[0-9]{12}"))
    place.fill_slot(1, params, [5, 6], max_tokens=NUM_TOKENS)
    expected = fill(place, 0)
    tokens = token_bytes()
    with Crew() as crew:
        staff(place, crew, 0, 1)
        device.join(0)
        device.join(1)
        device.run(0, 1)
    assert place.output(0) == expected[0]
    *digits, end = place.output(1)
    assert re.fullmatch(rb"[0-9]{12}", b"".join(tokens[token] for token in digits))
    assert end == EOS_ID
    assert device.engine.num_copied >= len(digits)


def test_a_batch_is_the_devices_once_no_row_has_banned_ids_any_more(cutting_place):
    place = cutting_place
    device = Device(place, sample_on_gpu="true")
    params = SamplingParams(temperature=0.9, top_k=5, seed=3, min_tokens=8)
    place.fill_slot(1, params, [5, 6], max_tokens=NUM_TOKENS)
    expected = fill(place, 0) | {1: mock_text([5, 6], params, NUM_TOKENS)}
    with Crew() as crew:
        staff(place, crew, 0, 1)
        device.join(0)
        device.join(1)
        device.run(0, 1)
    assert {slot: place.output(slot) for slot in expected} == expected
    assert device.engine.num_copied >= 8
    assert device.engine.num_chosen >= NUM_TOKENS - 8


class ChangingPlace:
    """Three steps here, three there."""

    def __init__(self, _mode: str) -> None:
        self._num_asked = 0

    def wants_device(self, _num_rows: int) -> bool:
        self._num_asked += 1
        return self._num_asked // 3 % 2 == 1

    def note(self, _num_rows: int, _is_on_device: bool, step_ns: int) -> None:
        assert step_ns > 0


def test_places_change_in_mid_text_and_no_text_does(cutting_place, monkeypatch):
    monkeypatch.setattr(device_ring, "SamplingPlace", ChangingPlace)
    device = serve_all(cutting_place, "auto")
    assert device.engine.num_chosen > 0
    assert device.engine.num_copied > 0


def test_rows_join_and_leave_while_others_run(place):
    device = Device(place)
    expected = fill(place, 0, 1)
    with Crew() as crew:
        staff(place, crew, 0, 1)
        device.join(0)
        device.join(1)
        while len(place.output(0)) < 5:
            device.ring.turn()
        expected |= fill(place, 2, 3)
        device.join(2)
        device.run(0)
        device.join(3)
        device.run(*expected)
    assert {slot: place.output(slot) for slot in expected} == expected


def test_a_row_without_room_goes_on_with_the_same_text_once_it_has_blocks(place):
    device = Device(place)
    expected = fill(place, 0)
    with Crew() as crew:
        staff(place, crew, 0, 1)
        order = device.join(0, num_blocks=1)
        while len(place.output(0)) < 14:  # positions 0 … 15 fill the block
            device.ring.turn()
        for _ in range(5):
            device.ring.turn()
        assert place.output(0) == expected[0][:14]
        assert device.events("starving") == [RowProgress(0, order.epoch, 3)]
        blocks = device.blocks(1)
        device.coscheduler.send("gpu-0", GrantBlocks(0, order.epoch, 1, blocks))
        device.run(0)
    assert place.output(0) == expected[0]


def test_a_request_that_ends_from_outside_runs_a_wasted_step_that_harms_nobody(place):
    device = Device(place)
    expected = fill(place, 0, 1)
    with Crew() as crew:
        staff(place, crew, 0, 1)
        device.join(0)
        device.join(1)
        while len(place.output(1)) < 5:
            device.ring.turn()
        place.slots.store(1, SlotWord.END_REASON, FinishReason.CANCELLED)
        device.run(0, 1)
    assert place.output(0) == expected[0]
    assert place.output(1) == expected[1][: len(place.output(1))]
    assert len(place.output(1)) < NUM_TOKENS


def test_a_retired_row_is_confirmed_and_joins_again_where_it_was(place):
    device = Device(place)
    expected = fill(place, 0, 2)
    with Crew() as crew:
        staff(place, crew, 0, 1)
        order = device.join(2)
        device.join(0)
        while len(place.output(2)) < 5:
            device.ring.turn()
        device.coscheduler.send("gpu-0", RetireSlot(2, order.epoch))
        while not device.events("retired"):
            device.ring.turn()
        num_known = len(place.output(2))
        device.run(0)
        assert len(place.output(2)) == num_known
        device.join(2)
        device.run(2)
    assert {slot: place.output(slot) for slot in expected} == expected


def join_again_what_overflows(device: Device, *slots: int) -> int:
    """Run until these rows have finished; how often one had to start over."""
    num_joined = 0
    for _ in range(2000):
        for event in device.events("overflowed")[num_joined:]:
            num_joined += 1
            device.join(event.slot)
        if {event.slot for event in device.events("finished")} >= set(slots):
            return num_joined
        device.ring.turn()
    raise AssertionError("the ring did not come there")


def test_prompts_without_memory_are_given_back_and_fit_in_smaller_pieces(place, monkeypatch):
    monkeypatch.setattr(prefill_budget, "LEAST_PIECE", 1)
    device = Device(place)
    expected = fill(place, *REQUESTS)
    device.engine.most_tokens = 5
    with Crew() as crew:
        staff(place, crew, 0, 1)
        for slot in expected:
            device.join(slot)
        num_joined = join_again_what_overflows(device, *expected)
    assert num_joined > 0
    assert {slot: place.output(slot) for slot in expected} == expected
    assert place.snapshot("gpu-0").counters["memory_full"] >= 2
    (error, *_) = [r.memory_error for r in device.coscheduler.of(StepReport) if r.memory_error]
    assert (error.code, error.fields["limit"]) == ("out_of_device_memory", "1 MiB free")


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_step_without_memory_is_given_back_and_its_texts_go_on(place, max_in_flight):
    device = Device(place, max_in_flight)
    expected = fill(place, *REQUESTS)
    with Crew() as crew:
        staff(place, crew, 0, 1)
        for slot in expected:
            device.join(slot)
        while min(len(place.output(slot)) for slot in expected) < 3:
            device.ring.turn()
        device.engine.num_failing_steps = 2
        num_joined = join_again_what_overflows(device, *expected)
    assert num_joined >= len(expected)
    assert {slot: place.output(slot) for slot in expected} == expected
    assert place.snapshot("gpu-0").counters["memory_full"] == 2


def test_prefill_beside_a_step_stays_within_the_budget(place, monkeypatch):
    monkeypatch.setattr(prefill_budget, "LEAST_TOKENS", 8)
    monkeypatch.setattr(prefill_budget, "WHOLE_TOKENS", 4)
    monkeypatch.setattr(prefill_budget, "CROWDED_TOKENS_PER_ROW", 1000)
    device = Device(place)
    expected = fill(place, 0, 1, 2)
    begun: list[tuple[int, int]] = []  # steps completed, tokens
    begin = device.engine.prefill

    def note(chunks):
        if device.ring._batch.num_running:
            num_done = place.snapshot("gpu-0").counters["steps"]
            begun.append((num_done, sum(len(chunk.ids) for chunk in chunks)))
        return begin(chunks)

    monkeypatch.setattr(device.engine, "prefill", note)
    with Crew() as crew:
        staff(place, crew, 0, 1)
        device.join(0)
        while len(place.output(0)) < 2:
            device.ring.turn()
        begun.clear()
        budget = device.ring._prefill.budget
        monkeypatch.setattr(budget, "_budget_ms", 12.0)
        monkeypatch.setattr(budget, "_us_per_token", 1000.0)
        monkeypatch.setattr(budget, "_num_left", 12)
        device.join(1)
        device.join(2)
        device.run(0, 1, 2)
    assert {slot: place.output(slot) for slot in expected} == expected
    per_step: dict[int, int] = {}
    for step, count in begun:
        per_step[step] = per_step.get(step, 0) + count
    assert begun
    assert max(per_step.values()) <= 12


def test_closing_releases_a_device_that_waits_for_samplers_that_are_gone(place):
    device = Device(place)
    fill(place, 0)
    device.join(0)
    crew = Crew()
    with crew:
        staff(place, crew, 0, 1)
        while len(place.output(0)) < 3:
            device.ring.turn()
    # No sampler is left; the device has a step whose lane nobody will answer.
    place.order("gpu-0", DrainWorker())
    while not device.context.should_exit:
        device.ring.turn()
    assert not device.engine.decoding.is_quiet()
    device.ring.close()
    assert device.engine.is_quiet()
    place._adopted.remove(device.ring)


def test_a_sampler_of_a_device_sleeps_until_a_step_is_announced(place):
    context = place.context("sampler-0")
    sampler = Sampler(context)
    place.fill_slot(0, GREEDY, [1])
    sampler.turn(0)
    place.logits.announce(1)
    sampler.turn(0)  # on its way; the turn gives up after a nap
    assert place.sampled.done(1, 0) == 0
    place.logits.write_rows(1, [])
    place.logits.publish(1)
    sampler.turn(0)
    assert place.sampled.done(1, 0) == 1


def test_poison_reaches_samplers_that_wait_for_an_announcement(place):
    context = place.context("sampler-0")
    sampler = Sampler(context)
    with Crew() as crew:
        crew.do(lambda: sampler.turn(10.0))
        place.order("sampler-0", DrainWorker())
        place.logits.poison()
    assert context.should_exit
