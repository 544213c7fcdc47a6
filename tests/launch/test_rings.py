from __future__ import annotations

import pytest

from hybridgen.ipc.board import COUNTER_NAMES, Role
from hybridgen.launch.rings import ring_fills
from tests.launch.test_plan import plan_of


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (Role.COSCHEDULER, [("waiting", 3, 100), ("prompts", 5, None)]),
        (Role.GPU, [("logits", 1, 2)]),
        (Role.DETOKENIZER, [("texts", 4, 180)]),
        (Role.GATEWAY, [("requests", 7, None)]),
        (Role.SAMPLER, []),
        (Role.TOKENIZER, []),
    ],
)
def test_what_waits_is_named_with_the_room_there_is(
    role: Role, expected: list[tuple[str, int, int | None]]
) -> None:
    counters = dict.fromkeys(COUNTER_NAMES[role], 0)
    known = {"waiting": 3, "encoding": 5, "open_steps": 1, "open_texts": 4, "open": 7}
    counters |= {name: value for name, value in known.items() if name in counters}
    rings = ring_fills(role, counters, plan_of(4, max_num_seqs=64, backlog_limit=100))
    assert [(ring.name, ring.depth, ring.capacity) for ring in rings] == expected
