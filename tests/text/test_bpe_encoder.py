from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.byte_alphabet import BYTE_TO_CHAR
from hybridgen.text.tokenizer import Tokenizer, build_tokenizer
from tests.text.reference_bpe import ReferenceBpe

TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(st.sampled_from("the 0129½²'sll \n\t_<|im_end>日é🙂"), max_size=40),
)


def _byte_spec(pre_tokenizer: str, **changes: Any) -> TokenizerSpec:
    """All bytes, a few merges, one control and one user-defined token."""
    tokens = [BYTE_TO_CHAR[value] for value in range(256)]
    tokens += ["ab", "Ġab", "12", "123", "<|end|>", "<think>"]
    types = [int(TokenType.NORMAL)] * 260 + [TokenType.CONTROL, TokenType.USER_DEFINED]
    spec = TokenizerSpec(
        kind="bpe",
        tokens=tokens,
        token_types=types,
        merges=["a b", "Ġ ab", "1 2", "12 3"],
        pre_tokenizer=pre_tokenizer,
    )
    return msgspec.structs.replace(spec, **changes)


def test_reference_prompts_give_the_reference_ids(
    smollm2: Tokenizer, smollm2_prompts: list[dict[str, Any]]
) -> None:
    for prompt in smollm2_prompts:
        ids = smollm2.encode(prompt["rendered"], allow_special=True)
        assert ids == prompt["prompt_ids"]
        assert smollm2.decode(ids, skip_special=False) == prompt["rendered"]


@pytest.fixture(scope="session")
def reference(smollm2_spec: TokenizerSpec) -> ReferenceBpe:
    return ReferenceBpe(smollm2_spec)


@given(TEXTS)
def test_smollm2_from_gguf_encodes_by_the_definition_of_bpe(
    smollm2: Tokenizer, reference: ReferenceBpe, text: str
) -> None:
    ids = smollm2.encode(text)
    assert ids == reference.encode(text)
    known = set(smollm2.token_bytes)
    if all(bytes([value]) in known for value in text.encode()):
        assert smollm2.decode(ids) == text


def test_gpt2_rule_agrees_with_transformers(smollm2_spec: TokenizerSpec) -> None:
    from transformers import GPT2Tokenizer

    vocab = {token: token_id for token_id, token in enumerate(smollm2_spec.tokens)}
    merges = [tuple(merge.split(" ")) for merge in smollm2_spec.merges]
    oracle = GPT2Tokenizer(vocab=vocab, merges=merges, unk_token=None)
    ours = build_tokenizer(msgspec.structs.replace(smollm2_spec, pre_tokenizer="gpt-2"))
    for text in ("It's 2024, isn't it?  \n\n  x", "naïve café 日本語 🙂", "a\tb\r\n  123456 ½"):
        assert ours.encode(text) == oracle(text)["input_ids"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("gpt-2", ["ab", " ab", "1234"]),
        ("smollm", ["ab", " ab", "1", "2", "3", "4"]),
        ("llama-bpe", ["ab", " ab", "123", "4"]),
        ("qwen2", ["ab", " ab", "1", "2", "3", "4"]),
    ],
)
def test_each_rule_cuts_digits_its_own_way(rule: str, words: list[str]) -> None:
    tokenizer = build_tokenizer(_byte_spec(rule))
    ids = [token_id for word in words for token_id in tokenizer.encode(word)]
    assert tokenizer.encode("ab ab1234") == ids
    assert (259 in ids) == (rule in ("gpt-2", "llama-bpe"))


def test_bytes_that_the_vocabulary_lacks_are_left_out(smollm2: Tokenizer) -> None:
    assert b"\x06" not in smollm2.token_bytes
    assert smollm2.encode("a\x06b") == [*smollm2.encode("a"), *smollm2.encode("b")]


def test_user_defined_tokens_are_found_in_text_and_control_tokens_are_not() -> None:
    tokenizer = build_tokenizer(_byte_spec("qwen2"))
    assert tokenizer.encode("a<think>b") == [97, 261, 98]
    assert tokenizer.encode("a<|end|>") == [97, *b"<|end|>"]
    assert tokenizer.encode("a<|end|>", allow_special=True) == [97, 260]
    assert tokenizer.special_ids == {260}


def test_unknown_pre_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="deepseek-coder"):
        build_tokenizer(_byte_spec("deepseek-coder"))


@pytest.mark.parametrize(
    "changes",
    [
        {"merges": ["a"]},
        {"merges": ["a b c"]},
        {"merges": ["zz yy"]},
        {"token_types": [1]},
        {"tokens": [], "token_types": []},
    ],
)
def test_lists_that_do_not_fit_are_a_bad_model_file(changes: dict[str, Any]) -> None:
    with pytest.raises(BadModelFile):
        build_tokenizer(_byte_spec("gpt-2", **changes))


def _byte_level_file(path: Path) -> tokenizers.Tokenizer:
    source = tokenizers.Tokenizer(
        models.BPE({BYTE_TO_CHAR[value]: value for value in range(256)} | {"ab": 256}, [("a", "b")])
    )
    source.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    source.decoder = decoders.ByteLevel()
    source.add_special_tokens([tokenizers.AddedToken("<|end|>", rstrip=True)])
    source.add_tokens(["<think>"])
    source.save(str(path))
    return source


def _metaspace_file(path: Path, scheme: str) -> tokenizers.Tokenizer:
    """As Llama's and Gemma's files: ▁ for spaces, bytes as fallback."""
    vocab = {"<unk>": 0, "<s>": 1} | {f"<0x{value:02X}>": 2 + value for value in range(256)}
    vocab |= {"▁": 258, "a": 259, "b": 260, "▁a": 261, "ab": 262}
    merges = [("▁", "a"), ("a", "b")]
    source = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
    if scheme == "normalizer":
        source.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        source.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    source.decoder = decoders.Sequence(steps)
    source.add_special_tokens([tokenizers.AddedToken("<s>", normalized=False)])
    source.save(str(path))
    return source


@given(text=st.text(st.sampled_from("ab <|end>tik\né"), max_size=20))
@pytest.mark.parametrize("kind", ["byte level", "normalizer", "first", "always", "never"])
def test_tokenizer_json_encodes_and_decodes_as_its_library_does(
    tokenizer_files: dict[str, tuple[Tokenizer, tokenizers.Tokenizer]], kind: str, text: str
) -> None:
    ours, oracle = tokenizer_files[kind]
    special = "<|end|>" if kind == "byte level" else "<s>"
    text = f"{text}{special} {text}"
    ids = oracle.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, allow_special=True) == ids
    assert ours.decode(ids) == oracle.decode(ids)
    assert not ours.special_ids & set(ours.encode(text))


@pytest.fixture(scope="session")
def tokenizer_files(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Tokenizer, tokenizers.Tokenizer]]:
    folder = tmp_path_factory.mktemp("tokenizer-json")
    made = {}
    for kind in ("byte level", "normalizer", "first", "always", "never"):
        path = folder / f"{kind}.json"
        is_byte_level = kind == "byte level"
        oracle = _byte_level_file(path) if is_byte_level else _metaspace_file(path, kind)
        made[kind] = (build_tokenizer(TokenizerSpec(kind="bpe", source_file=str(path))), oracle)
    return made


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"model": 3}',
        b'{"model": {"vocab": {"a": 4000000000}}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": -1}}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}',
        b"[" * 100_000,
    ],
)
def test_damaged_tokenizer_json_is_a_bad_model_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(BadModelFile):
        build_tokenizer(TokenizerSpec(kind="bpe", source_file=str(path)))


def test_word_piece_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}))
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        build_tokenizer(TokenizerSpec(kind="bpe", source_file=str(path)))


def test_a_panic_of_the_library_is_a_damaged_file(tmp_path: Path) -> None:
    model = models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])
    damaged = json.loads(tokenizers.Tokenizer(model).to_str())
    damaged["decoder"] = {"type": "ByteLevel"}
    damaged["model"]["continuing_subword_prefix"] = "longer than any token"
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(damaged))
    with pytest.raises(BadModelFile, match="damaged") as caught:
        build_tokenizer(TokenizerSpec(kind="bpe", vocab_size=3, source_file=str(path)))
    assert caught.value.fields["field"] == "tokenizer"
