"""What stops a text: stop strings, a pattern, or whichever of them ends first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hybridgen.text.regex_automaton import regex_automaton
from hybridgen.text.regex_scanner import RegexScanner
from hybridgen.text.stops import StopScanner, automaton_of


class Scanner(Protocol):
    """Looks for the first match in one text as it grows."""

    held: bytes
    """The end of the text that may be the beginning of a match."""
    match: bytes | None
    """What matched; nothing may be pushed after it."""

    def push(self, data: bytes) -> bytes:
        """Bytes that are certain to belong to the text before any match."""


def stop_scanner(stops: Sequence[bytes], regex: str | None) -> Scanner | None:
    """A scanner for all that stops a text; None where nothing does.

    Raises:
        InvalidRequest: an empty stop string, or a pattern that cannot be used.
    """
    scanners: list[Scanner] = [StopScanner(automaton_of(stops))] if stops else []
    if regex is not None:
        scanners.append(RegexScanner(regex_automaton(regex)))
    return FirstOf(scanners) if len(scanners) > 1 else next(iter(scanners), None)


class FirstOf:
    """Several scanners of one text. The match that ends first counts, of those the longest.

    Attributes:
        held, match: as of each scanner.
    """

    def __init__(self, scanners: Sequence[Scanner]) -> None:
        self._scanners = scanners
        self.held = b""
        self.match: bytes | None = None

    def push(self, data: bytes) -> bytes:
        """Bytes that are certain to belong to the text before any match."""
        seen = self.held + data
        matches = []  # (end, begin) in ``seen``
        for scanner in self._scanners:
            begin = len(self.held) - len(scanner.held)
            begin += len(scanner.push(data))
            if scanner.match is not None:
                matches.append((begin + len(scanner.match), begin))
        if matches:
            end, begin = min(matches)
            self.held, self.match = b"", seen[begin:end]
            return seen[:begin]
        num_held = max(len(scanner.held) for scanner in self._scanners)
        num_free = len(seen) - num_held
        self.held = seen[num_free:]
        return seen[:num_free]
