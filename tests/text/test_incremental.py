from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from hybridgen.text.incremental import IncrementalDecoder, unfinished_character

_TEXT = st.text(min_size=1).map(lambda text: text.encode("utf-8", "surrogatepass"))
CHUNKS = st.lists(st.one_of(st.binary(max_size=6), _TEXT), max_size=12)


def _decode(chunks: list[bytes], seed: bytes = b"") -> str:
    decoder = IncrementalDecoder(seed)
    return "".join([decoder.push(chunk) for chunk in chunks]) + decoder.finish()


@given(CHUNKS)
def test_chunks_give_the_text_of_the_whole(chunks: list[bytes]) -> None:
    assert _decode(chunks) == b"".join(chunks).decode("utf-8", "replace")


@given(CHUNKS)
def test_single_bytes_give_the_text_of_the_whole(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    assert _decode([bytes([value]) for value in whole]) == whole.decode("utf-8", "replace")


def test_half_a_character_is_never_shown() -> None:
    decoder = IncrementalDecoder()
    shown = [decoder.push(bytes([value])) for value in "🙂é".encode()]
    assert shown == ["", "", "", "🙂", "", "é"]
    assert decoder.num_pending == 0


def test_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    decoder = IncrementalDecoder()
    assert decoder.push(b"a\xf0\x9f\x99") == "a"
    assert decoder.num_pending == 3
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


@given(st.binary(max_size=8), CHUNKS)
@example(b"\xef\xbf", [b"\xbd"])  # the whole character is U+FFFD itself
@example(b"\xf0", [b"\x80"])  # a continuation byte that this beginning cannot have
def test_seed_is_shown_only_within_a_character_that_new_bytes_continue(
    before: bytes, chunks: list[bytes]
) -> None:
    seed = unfinished_character(before)
    new = b"".join(chunks)
    # one character, whole or bad, covers the beginning and the byte after it: they belong together
    is_continued = bool(new) and len((seed + new[:1]).decode("utf-8", "replace")) == 1
    assert _decode(chunks, seed) == ((seed if is_continued else b"") + new).decode(
        "utf-8", "replace"
    )


def test_character_that_the_prompt_began_is_shown_whole() -> None:
    seed = unfinished_character("costs €".encode()[:-1])
    assert seed == b"\xe2\x82"
    assert _decode([b"\xac 5"], seed) == "€ 5"
    assert _decode([b"5"], seed) == "5"
    assert _decode([], seed) == ""
