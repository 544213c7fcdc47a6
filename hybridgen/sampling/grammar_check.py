"""Refuses grammars that samplers could not follow, before anything is computed for a request."""

from __future__ import annotations

from hybridgen.request import Grammar
from hybridgen.sampling.lazy_matchers import LazyMatchers
from hybridgen.sampling.process_limits import process_limits

#: A compilation that takes longer is refused; samplers compile it too, while a batch waits.
MAX_COMPILE_S = 0.5
#: What ends the process, should llguidance's own limits not hold.
MAX_CPU_S = 2.0
MAX_MEMORY_BYTES = 2**30


class GrammarCheck:
    """Compiles grammars and keeps nothing but what it takes to do so.

    Args:
        matchers: made with ``MAX_COMPILE_S``.
    """

    def __init__(self, matchers: LazyMatchers) -> None:
        self._matchers = matchers

    def check(self, grammar: Grammar) -> None:
        """Compile ``grammar``.

        Raises:
            InvalidRequest: it is malformed, unsupported or too costly; names its param.
        """
        self._matchers.load()
        with process_limits(MAX_CPU_S, MAX_MEMORY_BYTES):
            self._matchers.start(grammar)
