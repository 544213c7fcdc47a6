"""GPT-2's byte alphabet: every byte as one printable character, so that vocabularies are text.

Printable bytes stand for themselves; the 68 others are moved to U+0100 and up, in byte order
(Radford et al. 2019, the published encoder of GPT-2). A space is therefore ``Ġ`` (U+0120).
"""

from __future__ import annotations


def _is_printable(value: int) -> bool:
    return 0x21 <= value <= 0x7E or 0xA1 <= value <= 0xAC or 0xAE <= value <= 0xFF


def _byte_to_char() -> dict[int, str]:
    moved = [value for value in range(256) if not _is_printable(value)]
    return {
        value: chr(value) if _is_printable(value) else chr(0x100 + moved.index(value))
        for value in range(256)
    }


BYTE_TO_CHAR: dict[int, str] = _byte_to_char()
CHAR_TO_BYTE: dict[str, int] = {char: value for value, char in BYTE_TO_CHAR.items()}
#: For ``str.translate``: a whole token becomes latin-1 text, one character per byte. Characters
#: outside the alphabet map far outside latin-1, so that encoding such a token fails.
_TO_LATIN_1 = {
    **{code: "\U0010ffff" for code in range(0x100) if chr(code) not in CHAR_TO_BYTE},
    **{ord(char): chr(value) for char, value in CHAR_TO_BYTE.items()},
}


def token_to_bytes(token: str) -> bytes:
    """Bytes that ``token`` stands for; text outside the alphabet stands for its own UTF-8."""
    try:
        return token.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "surrogatepass")
