"""Small vocabularies made the way each family's are, as the three kinds of files that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from gguf import GGUFWriter
from sentencepiece import SentencePieceTrainer
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from hybridgen.formats.gguf import GgufFile
from hybridgen.formats.gguf_tokenizer import tokenizer_spec
from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.sentencepiece_proto import SentencePieceModel, parse_model
from tests.text.mixed_lines import mixed_lines

#: Not those that are tested, so that the vocabularies do not know all of them.
LINES = mixed_lines(3_000, seed=2)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>"]
USER_DEFINED = ["<think>", "</think>"]


class Files(NamedTuple):
    """One vocabulary."""

    json: Path
    gguf: Path
    model: Path | None = None

    def specs(self) -> dict[str, TokenizerSpec]:
        """What the formats make of them."""
        with GgufFile(self.gguf) as gguf:
            specs = {"gguf": tokenizer_spec(gguf)}
        specs["json"] = TokenizerSpec(kind="bpe", source_file=str(self.json))
        if self.model is not None:
            specs["model"] = TokenizerSpec(kind="sentencepiece", source_file=str(self.model))
        return specs


# --- byte-level BPE -----------------------------------------------------------------------------

# The patterns as the published files write them.
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
_TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
_GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([cut, as_bytes])


def _digits() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


#: ``tokenizer.ggml.pre`` → how the family's tokenizer.json cuts a text.
BYTE_LEVEL: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": _digits(),
    "llama-bpe": _split(_LLAMA3),
    "qwen2": _split(_QWEN2),
    "tekken": _split(_TEKKEN),
    "gpt-4o": _split(_GPT4O),
}
#: Families that take a word that is a token as it stands, merges or not.
WHOLE_PIECES = ("llama-bpe", "tekken")


def byte_level_files(folder: Path, rule: str) -> Files:
    """A vocabulary of 900 tokens for ``rule``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = BYTE_LEVEL[rule]
    tokenizer.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    content = json.loads(tokenizer.to_str())
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    if rule in WHOLE_PIECES:  # tokens that no merge leads to
        content["model"]["ignore_merges"] = True
        merges = [merge for index, merge in enumerate(merges) if index % 5]
        content["model"]["merges"] = [merge.split(" ") for merge in merges]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROLS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in USER_DEFINED])
    files = Files(folder / f"{rule}.json", folder / f"{rule}.gguf")
    tokenizer.save(str(files.json))
    ids = tokenizer.get_vocab()
    writer = GGUFWriter(files.gguf, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(sorted(ids, key=ids.__getitem__))
    kinds = {**dict.fromkeys(CONTROLS, 3), **dict.fromkeys(USER_DEFINED, 4)}
    writer.add_token_types([kinds.get(text, 1) for text in sorted(ids, key=ids.__getitem__)])
    writer.add_token_merges(merges)
    _close(writer)
    return files


def _close(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


# --- SentencePiece ------------------------------------------------------------------------------

_LLAMA: dict[str, Any] = {
    "model_type": "bpe",
    "vocab_size": 900,
    "byte_fallback": True,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
    "remove_extra_whitespaces": False,
    "normalization_rule_name": "identity",
    "character_coverage": 0.98,
}
#: Family → how its tokenizer.model was trained.
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "control_symbols": ["[INST]", "[/INST]", "[TOOL_CALLS]"]},
    "gemma": {
        **_LLAMA,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["\n\n", "\n\n\n", "▁▁", "<start_of_turn>", "<td>"],
        **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
    },
}


def sentencepiece_files(folder: Path, family: str) -> Files:
    """A vocabulary of some 900 pieces with the settings of ``family``."""
    prefix = folder / family
    SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_prefix=str(prefix),
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **SENTENCEPIECE[family],
    )
    files = Files(
        prefix.with_suffix(".json"), prefix.with_suffix(".gguf"), folder / f"{family}.model"
    )
    model = parse_model((folder / f"{family}.model").read_bytes())
    _write_gguf(files.gguf, model)
    _fast(model).save(str(files.json))
    return files


def _write_gguf(path: Path, model: SentencePieceModel) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    user_defined = TokenType.USER_DEFINED
    writer.add_token_list(
        [
            piece.replace("▁", " ") if kind == user_defined else piece
            for piece, kind in zip(model.pieces, model.types, strict=True)
        ]
    )
    writer.add_token_scores(model.scores)
    writer.add_token_types(model.types)
    writer.add_unk_token_id(model.types.index(TokenType.UNKNOWN))
    writer.add_add_space_prefix(model.has_dummy_prefix)
    _close(writer)


def _fast(model: SentencePieceModel) -> Tokenizer:
    """As converters write it: merges are all pairs of pieces that join to one, best score first."""
    ids = {piece: index for index, piece in enumerate(model.pieces)}
    normal = (TokenType.NORMAL, TokenType.USER_DEFINED)
    pairs = [
        (-model.scores[index], index, piece[:cut], piece[cut:])
        for piece, index in ids.items()
        if model.types[index] in normal
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    pairs.sort(key=lambda pair: (pair[0], pair[1], -len(pair[2])))
    merges = [(left, right) for _, _, left, right in pairs]
    unknown = model.pieces[model.types.index(TokenType.UNKNOWN)]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, byte_fallback=True))
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    tail: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.has_dummy_prefix:
        steps.insert(0, normalizers.Prepend("▁"))
        tail.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(tail)
    for piece, kind in zip(model.pieces, model.types, strict=True):
        added = AddedToken(piece, normalized=False)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            tokenizer.add_special_tokens([added])
        elif kind == TokenType.USER_DEFINED:
            tokenizer.add_tokens([added])
    return tokenizer
