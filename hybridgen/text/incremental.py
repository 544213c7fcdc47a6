"""Bytes → text as they come: never half a character, and the same text as all bytes at once."""

from __future__ import annotations

import codecs

#: Smaller bytes are whole characters.
_FIRST_OF_SEVERAL = 0x80
_new_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDecoder:
    """UTF-8 decoder over any chunking of the bytes.

    The texts of all calls joined equal ``all_bytes.decode("utf-8", "replace")``. At most three
    bytes, the beginning of a character that may still become whole, are kept back.

    Args:
        seed: beginning of a character (from ``unfinished_character``) that was shown to nobody;
            its whole belongs to this text if the first byte continues it, otherwise nothing.
    """

    def __init__(self, seed: bytes = b"") -> None:
        self._decoder: codecs.IncrementalDecoder | None = None  # most texts need none
        self._seed = seed
        self.num_pending = 0
        """Bytes kept back (the seed included, once it is in use)."""

    def push(self, data: bytes) -> str:
        """Text that ``data`` completes."""
        if not (self.num_pending or self._seed):
            try:
                return data.decode()
            except UnicodeDecodeError:
                pass  # it ends within a character, or is no text
        decoder = self._decoder = self._decoder or _new_decoder("replace")
        if self._seed and data:
            if _continues(self._seed, data[:1]):
                decoder.setstate((self._seed, 0))
            self._seed = b""
        text = decoder.decode(data)
        self.num_pending = len(decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """Text of what was kept back: U+FFFD for a character that stayed unfinished, or nothing."""
        self.num_pending = 0
        return "" if self._decoder is None else self._decoder.decode(b"", True)


def unfinished_character(data: bytes) -> bytes:
    """The beginning of a UTF-8 character at the end of ``data``, or nothing."""
    if not data or data[-1] < _FIRST_OF_SEVERAL:
        return b""
    decoder = _new_decoder("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def _continues(beginning: bytes, byte: bytes) -> bool:
    try:
        _new_decoder("strict").decode(beginning + byte)
    except UnicodeDecodeError:
        return False
    return True
