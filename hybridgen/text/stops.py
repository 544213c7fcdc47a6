"""Stop strings on a byte automaton, with exact hold-back.

The automaton is Aho and Corasick's (1975), completed to a DFA: a state is the longest suffix of
the text that begins some stop string, so its depth is exactly what must be held back, no byte
more. Which match counts: the one that ends first; of those that end together the longest, that is
the one that starts earliest.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from functools import lru_cache

from hybridgen.errors import InvalidRequest

MAX_STATES = 2**16
_ROOT = 0


class StopAutomaton:
    """The DFA of a set of stop strings. Immutable; shared by all texts with the same stops.

    Attributes:
        rows: state → next state for each byte value (256 entries).
        depths: state → bytes that a match may have begun with.
        match_bytes: state → length of the stop string that ends here, or 0.
        first_bytes: bytes that begin a stop string.
    """

    def __init__(self, stops: Iterable[bytes]) -> None:
        children: list[dict[int, int]] = [{}]
        self.depths: list[int] = [0]
        self.match_bytes: list[int] = [0]
        for stop in stops:
            self._add(stop, children)
        self.first_bytes = bytes(children[_ROOT])
        self.rows: list[array[int]] = _complete(children, self.match_bytes)

    def _add(self, stop: bytes, children: list[dict[int, int]]) -> None:
        state = _ROOT
        for depth, byte in enumerate(stop, 1):
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                self.depths.append(depth)
                self.match_bytes.append(0)
            state = children[state][byte]
        if state == _ROOT or len(children) > MAX_STATES:
            raise InvalidRequest(
                "stop strings must hold at least one byte and not too many",
                param="stop",
                value=len(stop),
                limit=f"[1, {MAX_STATES})",
                remedy="Leave out empty stop strings",
            )
        self.match_bytes[state] = len(stop)


def _complete(children: list[dict[int, int]], match_bytes: list[int]) -> list[array[int]]:
    """Fill in the failure transitions, breadth first: a row is its failure state's row, amended.

    A state inherits the match of its failure state, a proper suffix, only when it has none.
    """
    rows = [array("H", bytes(512)) for _ in children]
    failures = [_ROOT] * len(children)
    queue = deque([_ROOT])
    while queue:
        state = queue.popleft()
        failure = failures[state]
        match_bytes[state] = match_bytes[state] or match_bytes[failure]
        if state != _ROOT:
            rows[state][:] = rows[failure]
        for byte, child in children[state].items():
            failures[child] = rows[failure][byte] if state != _ROOT else _ROOT
            rows[state][byte] = child
            queue.append(child)
    return rows


@lru_cache(maxsize=64)
def _automaton(stops: tuple[bytes, ...]) -> StopAutomaton:
    return StopAutomaton(stops)


def automaton_of(stops: Iterable[bytes]) -> StopAutomaton:
    """The automaton of ``stops``, built once for all texts with the same set.

    Raises:
        InvalidRequest: for an empty stop string.
    """
    return _automaton(tuple(sorted(set(stops))))


class StopScanner:
    """Runs one text through an automaton.

    Attributes:
        held: bytes that may be the beginning of a match.
        match: the stop string that was found, or None; nothing may be pushed after it.
    """

    def __init__(self, automaton: StopAutomaton) -> None:
        self._automaton = automaton
        self._state = _ROOT
        self.held = b""
        self.match: bytes | None = None

    def push(self, data: bytes) -> bytes:
        """Bytes that are certain to belong to the text before any match."""
        automaton = self._automaton
        state = self._state
        if state == _ROOT and len(data.translate(None, automaton.first_bytes)) == len(data):
            return data
        rows, match_bytes = automaton.rows, automaton.match_bytes
        for index, byte in enumerate(data):
            state = rows[state][byte]
            if match_bytes[state]:
                seen = self.held + data[: index + 1]
                self.held = b""
                self.match = seen[-match_bytes[state] :]
                return seen[: -match_bytes[state]]
        self._state = state
        seen = self.held + data
        num_free = len(seen) - automaton.depths[state]
        self.held = seen[num_free:]
        return seen[:num_free]
