"""Floods and slow clients over HTTP/2: others are served meanwhile, and little CPU is spent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("h2")

from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.running_tree import RunningTree, running_tree
from tools.http2_attacks import NAMES, NUM_SLOW, measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

FLOOD_S = 2.0
MAX_CPU_S = 0.5
MAX_WAIT_S = 2.0
MAX_RSS_MB = 200.0
SLOW = {"slow_readers", "never_reading"}  # they make the model work, which is no attack
UNBOUND = {"hit_and_run"}  # only a firewall holds back who does not wait for an answer


class Door:
    """A tree and the port of its gateway."""

    def __init__(self, tree: RunningTree, port: int) -> None:
        self.tree = tree
        self.port = port


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    port = free_port()
    limits = {"max_num_seqs": NUM_SLOW + 56, "slow_reader_timeout_s": 5.0}
    with running_tree(model="mock", num_gateways=1, port=port, **limits) as tree:
        yield Door(tree, port)


@pytest.mark.parametrize("name", NAMES)
def test_others_are_served_during_an_attack(door: Door, name: str) -> None:
    pid = door.tree.pid_of("gateway-0")
    damage = measure(name, door.port, pid, FLOOD_S)
    assert damage.num_refused == 0
    assert damage.slowest_s <= MAX_WAIT_S
    assert damage.rss_mb <= MAX_RSS_MB
    assert damage.cpu_s <= MAX_CPU_S or name in SLOW | UNBOUND
    assert door.tree.pid_of("gateway-0") == pid
    eventually(lambda: door.tree.client.health().num_running == 0, 20.0)
