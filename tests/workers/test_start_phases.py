from __future__ import annotations

from hybridgen.workers.start_phases import StartPhases
from tests.support.fake_clock import FakeClock


def test_every_second_of_a_start_belongs_to_a_phase() -> None:
    clock = FakeClock(10.0)
    phases = StartPhases(9.0, clock)
    for name, seconds in (("libraries", 2.0), ("weights", 0.5), ("weights", 0.25), ("ring", 0.001)):
        phases.begin(name)
        clock.advance(seconds)
    assert str(phases) == "3.75 s: libraries 2.00, interpreter 1.00, weights 0.75"


def test_a_process_knows_when_it_was_born() -> None:
    phases = StartPhases.of_this_process()
    seconds = float(str(phases).partition(" s: ")[0])
    assert 0.0 < seconds < 86_400.0
