"""Trees of regular expressions → nondeterministic automata over the bytes of UTF-8.

Thompson's construction (1968), from the end of the text to its beginning: each part is built onto
the state that follows it.
"""

from __future__ import annotations

from hybridgen.text.code_points import Ranges, utf8_sequences
from hybridgen.text.regex_syntax import Characters, Choice, Node, Repeat, Series, refuse

#: What compiling may cost, in steps of about 0.2 µs. Counted, not measured, so that every process
#: judges a pattern alike.
MAX_STEPS = 150_000
_STATE_STEPS = 15
_NODE_STEPS = 5

ACCEPT = 0


class Nfa:
    """States are numbers; ``ACCEPT`` is the end of a match.

    Attributes:
        edges: state → (first byte, last byte, next state).
        skips: state → states it passes into without a byte.
        start: where a match begins.

    Args:
        tree: of the pattern.

    Raises:
        InvalidRequest: it takes more than ``MAX_STEPS``.
    """

    def __init__(self, tree: Node) -> None:
        self.edges: list[list[tuple[int, int, int]]] = [[]]
        self.skips: list[list[int]] = [[]]
        self._num_steps = 0
        self._sequences: dict[Ranges, list[Ranges]] = {}
        self.start = self._build(tree, ACCEPT)

    def spend(self, num_steps: int) -> None:
        """Count work.

        Raises:
            InvalidRequest: it was too much.
        """
        self._num_steps += num_steps
        if self._num_steps > MAX_STEPS:
            refuse(
                "the pattern takes too much work to compile",
                limit=f"{MAX_STEPS} steps",
                remedy="Repeat less, and shorter parts",
            )

    def _state(self) -> int:
        self.spend(_STATE_STEPS)
        self.edges.append([])
        self.skips.append([])
        return len(self.edges) - 1

    def _build(self, node: Node, after: int) -> int:
        """The state at which ``node`` begins, ``after`` being the one at which it ends."""
        self.spend(_NODE_STEPS)
        match node:
            case Characters(ranges):
                return self._characters(ranges, after)
            case Series(parts):
                for part in reversed(parts):
                    after = self._build(part, after)
                return after
            case Choice(options):
                fork = self._state()
                self.skips[fork] = [self._build(option, after) for option in options]
                return fork
            case Repeat():
                return self._repeat(node, after)

    def _characters(self, ranges: Ranges, after: int) -> int:
        """Equal ends of characters are built once."""
        start = self._state()
        ends: dict[Ranges, int] = {(): after}
        if ranges not in self._sequences:
            spelled = [utf8_sequences(first, last) for first, last in ranges]
            self._sequences[ranges] = [one for several in spelled for one in several]
        for head, *tail in self._sequences[ranges]:
            self.edges[start].append((*head, self._end(tuple(tail), ends)))
        return start

    def _end(self, tail: Ranges, ends: dict[Ranges, int]) -> int:
        if tail not in ends:
            state = self._state()
            self.edges[state].append((*tail[0], self._end(tail[1:], ends)))
            ends[tail] = state
        return ends[tail]

    def _repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self._state()
            self.skips[loop] = [self._build(node.part, loop), after]
            start = loop
        else:
            start = after
            for _ in range(node.most - node.least):
                fork = self._state()
                self.skips[fork] = [self._build(node.part, start), after]
                start = fork
        for _ in range(node.least):
            start = self._build(node.part, start)
        return start
