"""Byte-level BPE through the ``tokenizers`` library: rebuilt from lists, or from tokenizer.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.text.split_rules import SPLIT_RULES, SplitRule
from hybridgen.text.vocabulary import token_types

# A batch is one text here; the library would hand it to threads of its own.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

_REMEDY = "Fetch or convert the model again"
_Result = TypeVar("_Result")


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
        # The fast call keeps no offsets.
        (encoding,) = _guarded(
            lambda: tokenizer.encode_batch_fast([text], add_special_tokens=False),
            "the tokenizer cannot encode a text",
        )
        ids: list[int] = encoding.ids
        return ids


def build_bpe_encoder(spec: TokenizerSpec) -> BpeEncoder:
    """Build from the spec's file or lists.

    Raises:
        UnsupportedModel: unknown pre-tokenizer. BadModelFile: damaged file or lists.
    """
    if spec.has_source:
        return _from_file(spec)
    return _from_lists(spec)


def _from_lists(spec: TokenizerSpec) -> BpeEncoder:
    rule = SPLIT_RULES.get(spec.pre_tokenizer)
    if rule is None:
        raise UnsupportedModel(
            "this pre-tokenizer is not implemented",
            value=spec.pre_tokenizer or "(none named)",
            limit=", ".join(SPLIT_RULES),
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
        lambda: Tokenizer(models.BPE(mergeable, merges, ignore_merges=rule.takes_whole_pieces)),
        "the vocabulary and its merges do not fit each other",
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(rule)
    if rule.is_composed:
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
            "a merge is not a pair",
            field="merges",
            value=merge[:80],
            limit="two tokens with one space between",
            remedy=_REMEDY,
        )
    return left, right


def _pre_tokenizer(rule: SplitRule) -> pre_tokenizers.PreTokenizer:
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, as_bytes])


def _from_file(spec: TokenizerSpec) -> BpeEncoder:
    name = spec.source_name
    try:
        text = spec.read_source().decode()
    except UnicodeDecodeError as error:
        raise BadModelFile(
            f"{name} cannot be read: {error}", field="tokenizer.json", remedy=_REMEDY
        ) from error
    first = _from_json(text, name)
    later_text = _without_first_prefix(text)
    return BpeEncoder(first, _from_json(later_text, name) if later_text is not None else None)


def _from_json(text: str, name: str) -> Tokenizer:
    tokenizer = _guarded(lambda: Tokenizer.from_str(text), f"{name} is damaged")
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


def _guarded(call: Callable[[], _Result], what: str) -> _Result:
    """What the library makes of a model; it raises no narrower class, and its panics are none."""
    try:
        return call()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadModelFile(f"{what}: {error}", field="tokenizer", remedy=_REMEDY) from error
