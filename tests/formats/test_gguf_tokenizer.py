"""What GGUF says of a tokenizer only between the lines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.gguf_tokenizer import tokenizer_spec
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.text.tokenizer import build_tokenizer

PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), "▁", "a", "▁a"]
NAMED = ["<|user|>", "<|end|>", "<|endoftext|>", "[PAD1]", "  "]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
NAMED_TYPES = [CONTROL, CONTROL, CONTROL, UNKNOWN, USER_DEFINED]


def spec_of(architecture: str = "llama", template: str | None = None, **keys: Any) -> TokenizerSpec:
    """Of a SentencePiece vocabulary as converters of Phi-3 write it."""
    metadata = {
        "model": "llama",
        "tokens": [*PIECES, *NAMED],
        "scores": [-float(index) for index in range(len(PIECES) + len(NAMED))],
        "token_type": [*[CONTROL] * 3, *[BYTE] * 256, *[NORMAL] * 3, *NAMED_TYPES],
        "unknown_token_id": 0,
        **keys,
    }
    named = {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}
    named["general.architecture"] = architecture
    if template is not None:
        named["tokenizer.chat_template"] = template
    gguf: Any = SimpleNamespace(path=Path("test.gguf"), metadata=named)
    return tokenizer_spec(gguf)


def test_the_named_unknown_token_is_the_one_whatever_padding_is_called() -> None:
    tokenizer = build_tokenizer(spec_of())
    assert tokenizer.encode("a") == [PIECES.index("▁a")]
    padding = [*PIECES, *NAMED].index("[PAD1]")
    assert padding not in tokenizer.encode("[PAD1]")
    assert padding in tokenizer.special_ids


def test_a_piece_that_is_looked_for_as_it_stands_may_have_spaces() -> None:
    tokenizer = build_tokenizer(spec_of(add_space_prefix=False))
    spaces = [*PIECES, *NAMED].index("  ")
    assert tokenizer.encode("a  a") == [PIECES.index("a"), spaces, PIECES.index("a")]
    assert tokenizer.decode([spaces]) == "  "


@pytest.mark.parametrize(("architecture", "is_eaten"), [("phi3", True), ("llama", False)])
def test_phi3_eats_the_white_space_behind_its_special_tokens(
    architecture: str, is_eaten: bool
) -> None:
    tokenizer = build_tokenizer(spec_of(architecture))
    user, end = (PIECES.index("▁a") + 1 + index for index in range(2))
    ids = tokenizer.encode("<|user|>\n a<|end|>\n", allow_special=True)
    plain = [user, *tokenizer.encode("a"), end]
    assert (ids == plain) == is_eaten
    kept = tokenizer.encode("<|endoftext|>\n", allow_special=True)
    assert len(kept) > 1


BPE: dict[str, Any] = {
    "model": "gpt2",
    "tokens": ["a", "b", "ab"],
    "token_type": [NORMAL] * 3,
    "merges": ["a b"],
    "scores": None,
    "unknown_token_id": None,
}


@pytest.mark.parametrize(
    ("pre", "add_bos"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), (None, False)]
)
def test_families_differ_in_what_they_put_before_a_text(pre: str | None, add_bos: bool) -> None:
    spec = spec_of(**BPE, pre=pre)
    assert spec.add_bos == add_bos
    assert spec.pre_tokenizer == (pre or "default")
    assert not spec_of(**BPE, pre=pre, add_bos_token=False).add_bos


def test_a_file_that_names_no_rule_cuts_digits_in_threes_and_signs_apart() -> None:
    tokens = [*"0123456789+ab", "12", "123", "1234", "+a", "ab"]
    merges = ["1 2", "12 3", "123 4", "+ a", "a b"]
    keys = {**BPE, "tokens": tokens, "token_type": [NORMAL] * len(tokens), "merges": merges}
    tokenizer = build_tokenizer(spec_of(**keys))
    ids = tokenizer.encode("1234+ab")
    assert [tokens[one] for one in ids] == ["123", "4", "+", "ab"]


def test_another_rule_is_refused_by_its_name() -> None:
    with pytest.raises(UnsupportedModel, match="qwen35"):
        build_tokenizer(spec_of(**BPE, pre="qwen35"))


def test_an_empty_chat_template_is_none() -> None:
    assert spec_of(template="x").chat_template == "x"
    assert spec_of(template="").chat_template is None
