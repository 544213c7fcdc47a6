from __future__ import annotations

import pytest

from hybridgen.server.reconnects import (
    CROWD,
    HEARD_PER_S,
    LOST_PER_S,
    MAX_BARRED,
    MAX_LOST,
    MEMORY_S,
    PARDON_S,
    Network,
    Reconnects,
    WaitingRoom,
    network_of,
    shown,
)
from hybridgen.server.traffic import Peer

HERE, ELSEWHERE = ("192.0.2.1", 1), ("192.0.2.2", 1)


def after(num_lost: int, now_s: float = 100.0) -> Reconnects:
    """What is known once so many connections from here have ended without a request."""
    reconnects = Reconnects()
    reconnects.lost([HERE] * num_lost, now_s)
    return reconnects


def peers(num: int, address: str = HERE[0]) -> list[Peer]:
    return [(address, port) for port in range(num)]


# --- networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "network", "text"),
    [
        ("192.0.2.1", b"\xc0\x00\x02\x01", "192.0.2.1"),
        ("::ffff:192.0.2.1", b"\xc0\x00\x02\x01", "192.0.2.1"),
        ("2001:db8:0:1:2:3:4:5", b"\x20\x01\x0d\xb8\x00\x00\x00\x01", "2001:db8:0:1::/64"),
    ],
)
def test_a_network_is_an_ipv4_address_or_half_an_ipv6_one(
    address: str, network: Network, text: str
) -> None:
    assert network_of((address, 1)) == network
    assert shown(network) == text


# --- who is barred ------------------------------------------------------------------------------


def test_a_few_connections_without_a_request_do_no_harm() -> None:
    reconnects = after(MAX_LOST - 1)
    assert reconnects.barred(100.0) == frozenset()
    assert not reconnects


def test_one_more_bars_its_network_and_no_other() -> None:
    reconnects = after(MAX_LOST)
    reconnects.lost([ELSEWHERE], 100.0)
    assert reconnects.barred(100.0) == {network_of(HERE)}
    assert reconnects.is_known(network_of(HERE))
    assert not reconnects.is_known(network_of(ELSEWHERE))


def test_who_goes_on_stays_barred() -> None:
    reconnects = after(MAX_LOST)
    for now_s in (103.0, 106.0, 109.0):
        reconnects.lost([HERE], now_s)
        assert reconnects.barred(now_s + MEMORY_S) == {network_of(HERE)}
    reconnects.lost([HERE], 112.1)
    assert reconnects.barred(112.1) == frozenset()


def test_a_long_attack_is_forgotten_as_soon_as_a_short_one() -> None:
    reconnects = after(1000 * MAX_LOST)
    reconnects.lost([HERE], 100.1 + MEMORY_S)
    assert reconnects.barred(100.1 + MEMORY_S) == frozenset()


def test_probes_at_a_steady_pace_do_no_harm() -> None:
    reconnects = Reconnects()
    for i in range(1000):
        reconnects.lost([HERE], 100.0 + 1.01 * i / LOST_PER_S)
        assert not reconnects


def test_who_stops_is_let_in_again_and_known_a_little_longer() -> None:
    reconnects = after(MAX_LOST)
    assert reconnects.barred(100.1 + MEMORY_S) == frozenset()
    assert reconnects  # the last that were barred must still be heard
    assert reconnects.barred(100.1 + 2 * MEMORY_S) == frozenset()
    assert not reconnects


def test_who_is_pardoned_is_not_barred_for_a_while() -> None:
    reconnects = after(MAX_LOST)
    reconnects.pardon([network_of(HERE), network_of(ELSEWHERE)], 100.0)
    assert reconnects.barred(100.0) == frozenset()
    reconnects.lost([HERE] * MAX_LOST, 100.0 + PARDON_S)
    assert reconnects.barred(100.0 + PARDON_S) == {network_of(HERE)}


def test_only_so_many_networks_are_barred() -> None:
    reconnects = Reconnects()
    for i in range(MAX_BARRED + 5):
        reconnects.lost([(f"192.0.2.{i}", 1)] * MAX_LOST, 100.0)
    assert len(reconnects.barred(100.0)) == MAX_BARRED


# --- who waits ----------------------------------------------------------------------------------


def test_a_connection_waits_until_its_turn() -> None:
    room = WaitingRoom()
    assert not room
    room.enter(HERE)
    assert room
    assert room.call(100.0) == {HERE}
    room.heard(HERE)
    assert not room


def test_it_is_called_again_until_it_is_heard() -> None:
    room = WaitingRoom()
    room.enter(HERE)
    assert room.call(100.0) == room.call(100.1) == {HERE}


def test_who_was_heard_waits_no_more() -> None:
    room = WaitingRoom()
    room.enter(HERE)
    room.heard(HERE)
    room.enter(HERE)
    assert not room


def test_the_first_are_called_first_and_only_so_many() -> None:
    room = WaitingRoom()
    room.call(100.0)
    waiting = peers(100)
    for peer in waiting:
        room.enter(peer)
    assert room.call(100.0 + 10.5 / HEARD_PER_S) == set(waiting[:10])


def test_one_network_does_not_wait_for_another() -> None:
    room = WaitingRoom()
    room.call(100.0)
    for peer in [*peers(100), ELSEWHERE]:
        room.enter(peer)
    assert ELSEWHERE in room.call(100.0)


def test_a_crowd_is_heard_at_once() -> None:
    room = WaitingRoom()
    room.call(100.0)
    for peer in peers(CROWD - 1):
        room.enter(peer)
    assert not room.crowded()
    assert len(room.call(100.0)) == 1
    room.enter((HERE[0], CROWD))
    room.enter(ELSEWHERE)
    assert room.crowded() == {network_of(HERE)}
    assert len(room.call(100.0)) == CROWD + 1


def test_who_has_left_is_forgotten() -> None:
    room = WaitingRoom()
    room.enter(HERE)
    room.enter(ELSEWHERE)
    room.heard(ELSEWHERE)
    room.forget({HERE, ELSEWHERE})
    assert not room
    room.enter(ELSEWHERE)  # a new one, same port
    assert room
