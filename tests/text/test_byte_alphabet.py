from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.text.byte_alphabet import BYTE_TO_CHAR, CHAR_TO_BYTE, token_to_bytes


def test_alphabet_is_the_published_one_of_gpt2() -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    assert bytes_to_unicode() == BYTE_TO_CHAR


@given(st.binary())
def test_every_byte_string_survives_its_token_form(data: bytes) -> None:
    assert token_to_bytes("".join(BYTE_TO_CHAR[value] for value in data)) == data
    assert len(CHAR_TO_BYTE) == 256


def test_text_outside_the_alphabet_stands_for_its_own_utf8() -> None:
    assert token_to_bytes("a b") == b"a b"
    assert token_to_bytes("日本") == "日本".encode()
