"""Byte-level BPE through the ``tokenizers`` library: rebuilt from lists, or from tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.vocabulary import token_types

# How text is cut before merging. Sources: the published tokenizer.json of SmolLM2 (digits one by
# one, then GPT-2's rule), Llama 3 and Qwen2; GGUF names these rules in tokenizer.ggml.pre.
_LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_REGEX = _LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
_RULE_NAMES = {
    "smollm": "smollm",
    "gpt-2": "gpt-2",
    "gpt2": "gpt-2",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "qwen2": "qwen2",
}


class BpeEncoder:
    """Plain text → ids. Control tokens are never recognized, user-defined ones always are.

    A byte that the vocabulary lacks (SmolLM2 knows no U+0006, for one) is left out, as the
    library and llama.cpp do: there is no id that could stand for it.
    """

    def __init__(self, tokenizer: Tokenizer, later: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._later = later or tokenizer

    def encode_run(self, text: str, is_first: bool) -> list[int]:
        """Ids of a run of plain text; ``is_first``: nothing stands before it."""
        tokenizer = self._tokenizer if is_first else self._later
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def build_bpe_encoder(spec: TokenizerSpec) -> BpeEncoder:
    """Build from the spec's file or lists.

    Raises:
        UnsupportedModel: unknown pre-tokenizer. BadModelFile: damaged file or lists.
    """
    if spec.source_file is not None:
        return _from_file(Path(spec.source_file))
    return _from_lists(spec)


def _from_lists(spec: TokenizerSpec) -> BpeEncoder:
    rule = _RULE_NAMES.get(spec.pre_tokenizer)
    if rule is None:
        raise UnsupportedModel(
            "this pre-tokenizer is not implemented",
            value=spec.pre_tokenizer or "(none named)",
            limit=", ".join(_RULE_NAMES),
            remedy="Use a model with one of these, or one with a tokenizer.json",
        )
    types = token_types(spec)
    mergeable = {
        token: token_id
        for token_id, (token, kind) in enumerate(zip(spec.tokens, types, strict=True))
        if kind not in (TokenType.CONTROL, TokenType.UNKNOWN)
    }
    merges = [_pair(merge) for merge in spec.merges]
    tokenizer = _guarded(
        lambda: Tokenizer(models.BPE(mergeable, merges, ignore_merges=rule == "llama-bpe")),
        "the vocabulary and its merges do not fit each other",
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(rule)
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    # These are found in text before anything else; the library keeps the ids of the vocabulary.
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(spec.tokens, types, strict=True)
            if kind == TokenType.USER_DEFINED and token
        ]
    )
    return BpeEncoder(tokenizer)


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise BadModelFile(
            "a merge is not a pair", value=merge[:80], limit="two tokens with one space between"
        )
    return left, right


def _pre_tokenizer(rule: str) -> pre_tokenizers.PreTokenizer:
    if rule == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rule == "smollm":
        first: pre_tokenizers.PreTokenizer = pre_tokenizers.Digits(individual_digits=True)
        second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        regex = _LLAMA3_REGEX if rule == "llama-bpe" else _QWEN2_REGEX
        first = pre_tokenizers.Split(Regex(regex), behavior="isolated")
        second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([first, second])


def _from_file(path: Path) -> BpeEncoder:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadModelFile(f"{path} cannot be read: {error}") from error
    first = _from_json(text, path)
    later_text = _without_first_prefix(text)
    return BpeEncoder(first, _from_json(later_text, path) if later_text is not None else None)


def _from_json(text: str, path: Path) -> Tokenizer:
    tokenizer = _guarded(lambda: Tokenizer.from_str(text), f"{path} is damaged")
    tokenizer.encode_special_tokens = True  # special-token text in a run is text
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_first_prefix(text: str) -> str | None:
    """The file with Metaspace's ``first`` changed to ``never``; None when there is none.

    Runs are encoded one by one, and only the first one of a prompt stands at its start.
    """
    state = json.loads(text)
    pre_tokenizer = state.get("pre_tokenizer") or {}
    steps = [pre_tokenizer, *(pre_tokenizer.get("pretokenizers") or [])]
    found = [step for step in steps if step.get("prepend_scheme") == "first"]
    for step in found:
        step["prepend_scheme"] = "never"
    return json.dumps(state) if found else None


def _guarded(build: Callable[[], Tokenizer], what: str) -> Tokenizer:
    try:
        tokenizer: Tokenizer = build()
    except Exception as error:  # the library raises no narrower class
        raise BadModelFile(f"{what}: {error}", remedy="Use an undamaged model file") from error
    return tokenizer
