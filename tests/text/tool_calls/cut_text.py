"""Texts cut into pieces, and what a parser made of them."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from hybridgen.text.tool_calls.call_format import CallFormat
from hybridgen.text.tool_calls.parser import CallParser
from hybridgen.text.tool_calls.pieces import Arguments, CallBegun, Content, Piece

OFFERED = frozenset({"get_weather", "f"})


def parse(format_: CallFormat, pieces: Iterable[str]) -> list[Piece]:
    """What comes out, neighbours of one kind joined."""
    parser = CallParser(format_, OFFERED)
    found = [piece for text in pieces for piece in parser.push(text)]
    return joined(found + parser.finish())


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind as one."""
    whole: list[Piece] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if isinstance(piece, Content) and isinstance(last, Content):
            whole[-1] = Content(last.text + piece.text)
        elif isinstance(piece, Arguments) and isinstance(last, Arguments):
            whole[-1] = Arguments(last.text + piece.text)
        else:
            whole.append(piece)
    return whole


def call(name: str, arguments: str) -> list[Piece]:
    """A call with arguments, as ``parse`` shows it."""
    return [CallBegun(name), Arguments(arguments)]


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """``text`` in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
