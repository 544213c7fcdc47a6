"""A pattern that stops a text, looked for in one text as it grows.

A match may begin at any byte. One state of the DFA is kept for each beginning from which a match
may still come, the earliest first; of those in the same state the earliest alone, since all of
them will end together. Patterns that could keep more than ``MAX_BEGINNINGS`` are refused.
"""

from __future__ import annotations

from hybridgen.text.regex_automaton import MATCH, START, RegexAutomaton


class RegexScanner:
    """Runs one text through an automaton; as ``StopScanner``.

    Attributes:
        held: bytes that may be the beginning of a match: the text from the earliest one on.
        match: what matched, or None; nothing may be pushed after it.
    """

    def __init__(self, automaton: RegexAutomaton) -> None:
        self._automaton = automaton
        self._states: dict[int, int] = {}  # state → where in ``held`` its beginning is
        self.held = b""
        self.match: bytes | None = None

    def push(self, data: bytes) -> bytes:
        """Bytes that are certain to belong to the text before any match."""
        automaton, states = self._automaton, self._states
        if not states and len(data.translate(None, automaton.first_bytes)) == len(data):
            return data
        rows = automaton.rows
        first = rows[START]
        seen = self.held + data
        for index, kind in enumerate(data.translate(automaton.kinds), len(self.held)):
            moved: dict[int, int] = {}
            for state, begin in states.items():
                if target := rows[state][kind]:
                    moved.setdefault(target, begin)
            if target := first[kind]:
                moved.setdefault(target, index)
            if MATCH in moved:
                return self._end(seen[: index + 1], moved[MATCH])
            states = moved
        num_free = next(iter(states.values()), len(seen))
        self._states = {state: begin - num_free for state, begin in states.items()}
        self.held = seen[num_free:]
        return seen[:num_free]

    def _end(self, seen: bytes, begin: int) -> bytes:
        self.held = b""
        self.match = seen[begin:]
        return seen[:begin]
