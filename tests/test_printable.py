from __future__ import annotations

from hybridgen.printable import printable


def test_what_steers_a_terminal_is_spelled_out() -> None:
    assert printable("a\x1b[2J\nb\x07\x9b") == r"a\x1b[2J\nb\x07\x9b"
    assert printable("\udcff\u202e") == r"\udcff\u202e"


def test_other_text_stays_as_it_is() -> None:
    text = "\u00fcber \u65e5\u672c \U0001f642 [bold] C:\\n"
    assert printable(text) is text
