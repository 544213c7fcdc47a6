"""Grammars compiled for one vocabulary, within limits that hold for whatever clients send.

llguidance does the work: a lexer of derivatives and an Earley parser, both of which count what
they do and stop at a limit. Its answers are a function of grammar and tokens alone, so a process
that replays the tokens of a text arrives at the same masks.
"""

from __future__ import annotations

import collections
import math
import re
import time
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from hybridgen.errors import InvalidRequest
from hybridgen.request import Grammar
from hybridgen.sampling.lark import as_lark
from hybridgen.text.vocabulary import Vocabulary

#: Work of a compilation, and of one token; about 50,000 and 14,000 a millisecond.
MAX_COMPILE_FUEL = 500_000
MAX_TOKEN_FUEL = 200_000
#: States of the lexer, of 1 to 2 kB each; symbols of a grammar.
MAX_LEXER_STATES = 10_000
MAX_GRAMMAR_SYMBOLS = 100_000
#: Items of the parser in one row and for one token. What they cost grows with the square of a row,
#: and only a grammar that says one thing in many ways has long ones for a few symbols; an object
#: has four for each property that may be left out.
MAX_ITEMS = {"lark": (500, 10_000)}
MAX_ITEMS_OF_OTHERS = (2000, 50_000)
#: Grammars kept as compiled: clients tend to send the same one again.
MAX_KEPT = 16
#: Tokens that are tried when a grammar is compiled.
NUM_TRIED = 3
_MAX_SHOWN_CHARS = 300
_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_DRAWING = re.compile(r"<|\d+ \||\^")


class _Tokens:
    """A vocabulary as llguidance reads it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_id: int) -> None:
        self.tokens = vocabulary.token_bytes
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = eos_id

    def __call__(self, text: bytes | str) -> list[int]:
        """Never needed: no tokens are forced, so none are encoded."""
        raise NotImplementedError(text)


class Matchers:
    """Gives out matchers at their beginning.

    Args:
        vocabulary: of the model.
        eos_ids: its end-of-text ids, allowed where a text may be complete.
        max_compile_s: CPU time after which a grammar is refused; whoever must follow one that
            was accepted elsewhere has no such limit.
    """

    def __init__(
        self, vocabulary: Vocabulary, eos_ids: Sequence[int], max_compile_s: float = math.inf
    ) -> None:
        self._tokenizer = (
            LLTokenizer(
                _Tokens(vocabulary, eos_ids[0]),  # type: ignore[arg-type]  # the same attributes
                n_vocab=vocabulary.vocab_size,
                eos_token=[*eos_ids],
            )
            if eos_ids
            else None
        )
        self._max_compile_s = max_compile_s
        self._kept: collections.OrderedDict[tuple[str, str], LLMatcher] = collections.OrderedDict()

    def start(self, grammar: Grammar) -> LLMatcher:
        """A matcher of ``grammar`` that no token was given yet.

        Raises:
            InvalidRequest: the grammar is malformed, unsupported or too costly; names its param.
        """
        key = (grammar.kind, grammar.text)
        matcher = self._kept.get(key)
        if matcher is None:
            matcher = self._compile(grammar)
            self._kept[key] = matcher
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return matcher.deep_copy()

    def _compile(self, grammar: Grammar) -> LLMatcher:
        if self._tokenizer is None:
            raise InvalidRequest(
                "the model has no end-of-text id, which a grammar needs",
                param=grammar.param,
                remedy="Leave the grammar out",
            )
        started_s = time.thread_time()
        limits = _limits(grammar)
        matcher = LLMatcher(self._tokenizer, as_lark(grammar), log_level=0, limits=limits)
        error = matcher.get_error() or _first_error(matcher.deep_copy())
        if error:
            raise InvalidRequest(
                f"{grammar.param} cannot be followed: {_cause(error)}",
                param=grammar.param,
                remedy="See the documentation for what grammars may hold",
            )
        if time.thread_time() - started_s > self._max_compile_s:
            raise InvalidRequest(
                f"{grammar.param} takes too long to compile",
                param=grammar.param,
                limit=f"{self._max_compile_s} s",
                remedy="Ask for something simpler: fewer alternatives, less nesting",
            )
        return matcher


def _limits(grammar: Grammar) -> LLParserLimits:
    max_row_items, max_token_items = MAX_ITEMS.get(grammar.kind, MAX_ITEMS_OF_OTHERS)
    return LLParserLimits(
        max_items_in_row=max_row_items,
        step_max_items=max_token_items,
        initial_lexer_fuel=MAX_COMPILE_FUEL,
        step_lexer_fuel=MAX_TOKEN_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def _first_error(matcher: LLMatcher) -> str:
    """What goes wrong with the first tokens, which can cost too much as well."""
    for _ in range(NUM_TRIED):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_stopped():
            break
        matcher.consume_token((allowed & -allowed).bit_length() - 1)
    return matcher.get_error()


def _cause(error: str) -> str:
    """What llguidance says, on one line, without the drawings that show where."""
    lines = [line.strip() for line in _PLACE.sub("", error).splitlines()]
    text = " ".join(line for line in lines if line and not _DRAWING.match(line))
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"
