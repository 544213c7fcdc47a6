"""The DFA of a pattern that stops a text, over the bytes of UTF-8.

It ends at the first end of a match: what could follow there is not built. Every other state can
still reach one, so what leads to a state is the beginning of a match.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache

from hybridgen.text import regex_nfa
from hybridgen.text.regex_nfa import Nfa
from hybridgen.text.regex_syntax import parse_regex, refuse

MAX_STATES = 1000
#: Beginnings of a match that a scanner may have to follow at once, at about 0.13 µs a byte each.
MAX_BEGINNINGS = 64
#: States of a ``RegexAutomaton``: no match any more, the end of a match, its beginning.
DEAD, MATCH, START = range(3)
_MOVES_A_STEP = 4  # of two beginnings
_END = 1 << regex_nfa.ACCEPT


class RegexAutomaton:
    """Immutable; shared by all texts with the same pattern.

    Attributes:
        kinds: byte → its kind; bytes of one kind lead from every state to the same one.
        rows: state → next state for each kind. first_bytes: bytes that begin a match.

    Raises:
        InvalidRequest: the pattern is malformed, outside the subset, too costly, or matches the
            empty text.
    """

    def __init__(self, pattern: str) -> None:
        self._nfa = Nfa(parse_regex(pattern))
        edges = [edge for several in self._nfa.edges for edge in several]
        self.kinds = _kinds(edges)
        self._closures: dict[int, int] = {}
        self._moves: dict[int, list[tuple[int, int]]] = {}
        self.rows = self._determine()
        begins = self.rows[START]
        self.first_bytes = bytes(byte for byte in range(256) if begins[self.kinds[byte]] != DEAD)
        if len(self.rows) - START > MAX_BEGINNINGS:
            self._check_beginnings()
        del self._nfa, self._closures, self._moves

    def _determine(self) -> list[array[int]]:
        """The subset construction; a set of states of the NFA is the bits of a number."""
        start = self._closure(self._nfa.start)
        if start & _END:
            refuse("the pattern matches the empty text", remedy="Ask for at least one character")
        num_kinds = self.kinds[-1] + 1
        numbers = {start: START}
        rows = [array("H", bytes(2 * num_kinds)) for _ in (DEAD, MATCH)]
        for states in (waiting := [start]):
            row = array("H", bytes(2 * num_kinds))
            for kind, target in self._targets(states).items():
                if target & _END:
                    row[kind] = MATCH
                    continue
                if target not in numbers:
                    numbers[target] = START + len(waiting)
                    waiting.append(target)
                row[kind] = numbers[target]
            rows.append(row)
            if len(waiting) > MAX_STATES:
                refuse(
                    "the pattern needs too many states",
                    limit=MAX_STATES,
                    remedy="Repeat less, or begin with what tells a match sooner",
                )
        return rows

    def _check_beginnings(self) -> None:
        """Bound what is open at once by the states that can be open beside that of the earliest."""
        rows = self.rows
        later: list[set[int]] = [set() for _ in rows]
        waiting = [(state, START) for state in range(START, len(rows))]
        while waiting:
            earliest, other = waiting.pop()
            self._nfa.spend(1 + len(rows[START]) // _MOVES_A_STEP)
            for first, second in zip(rows[earliest], rows[other], strict=True):
                # Once in the same state, the later one is not followed any more.
                if first > MATCH < second != first and second not in later[first]:
                    later[first].add(second)
                    waiting.append((first, second))
                    if len(later[first]) >= MAX_BEGINNINGS:
                        refuse(
                            "the pattern may keep too many beginnings of a match open at once",
                            limit=MAX_BEGINNINGS,
                            remedy="Repeat less, or begin with what cannot be in what is repeated",
                        )

    def _targets(self, states: int) -> dict[int, int]:
        """Kind → set of states that it leads to."""
        targets: dict[int, int] = {}
        for state in _bits(states):
            moves = self._moves.get(state)
            if moves is None:
                moves = self._moves[state] = list(self._moves_of(state))
            self._nfa.spend(1 + len(moves))
            for kind, target in moves:
                targets[kind] = targets.get(kind, 0) | target
        return targets

    def _moves_of(self, state: int) -> Iterator[tuple[int, int]]:
        for first, last, target in self._nfa.edges[state]:
            closure = self._closure(target)
            for kind in range(self.kinds[first], self.kinds[last] + 1):
                yield kind, closure

    def _closure(self, state: int) -> int:
        """``state`` and all that it passes into; those alone that have edges, or end a match."""
        if state in self._closures:
            return self._closures[state]
        found, seen, waiting = 0, {state}, [state]
        while waiting:
            one = waiting.pop()
            skips = self._nfa.skips[one]
            self._nfa.spend(1 + len(skips))
            found |= 0 if skips else 1 << one
            waiting += [other for other in skips if other not in seen]
            seen.update(skips)
        self._closures[state] = found
        return found


def _kinds(edges: list[tuple[int, int, int]]) -> bytes:
    """Byte → number of the interval it is in, between the borders of all edges."""
    borders = {first for first, _, _ in edges} | {last + 1 for _, last, _ in edges}
    kind, kinds = 0, bytearray()
    for byte in range(256):
        kind += byte in borders and byte > 0
        kinds.append(kind)
    return bytes(kinds)


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


@lru_cache(maxsize=32)
def regex_automaton(pattern: str) -> RegexAutomaton:
    """The automaton of ``pattern``, built once for all texts with the same pattern.

    Raises:
        InvalidRequest: as ``RegexAutomaton``.
    """
    return RegexAutomaton(pattern)
