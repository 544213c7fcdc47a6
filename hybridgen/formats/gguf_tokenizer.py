"""GGUF metadata → ``TokenizerSpec``. Key names after the GGUF specification."""

from __future__ import annotations

from hybridgen.errors import UnsupportedModel
from hybridgen.formats.gguf import GgufFile, Value
from hybridgen.formats.model_file import bad_field
from hybridgen.formats.tokenizer_spec import AddedToken, TokenizerSpec, TokenType
from hybridgen.models.config import MAX_EOS_IDS

MAX_TEMPLATE_CHARS = 2**20
#: Control tokens that end a turn or a document, whichever of them a vocabulary has.
END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
)
#: Pre-tokenizers whose models want a BOS although they are byte-level BPE.
_BOS_PRE_TOKENIZERS = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})
#: Phi-3's special tokens that leave the white space behind them alone; GGUF has no key for it.
_PHI3_KEEPING = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def tokenizer_spec(gguf: GgufFile) -> TokenizerSpec:
    """The tokenizer that ``gguf`` describes.

    Raises:
        UnsupportedModel: a tokenizer of another family.
        BadModelFile: vocabulary, merges, scores and types do not fit each other.
    """
    keys = _Keys(gguf)
    model = keys.text("model")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModel(
            "this tokenizer is not implemented",
            field="tokenizer.ggml.model",
            value=model,
            limit="gpt2 (byte-level BPE), llama (SentencePiece)",
            remedy="Use a model with one of these tokenizers",
            file=str(gguf.path),
        )
    is_bpe = model == "gpt2"
    tokens = keys.texts("tokens")
    types = keys.integers("token_type", len(tokens))
    merges = keys.texts("merges") if is_bpe else []
    if is_bpe:
        _check_merges(gguf, tokens, merges)
    pre_tokenizer = keys.text("pre", "default" if is_bpe else "")
    eos_id = keys.token_id("eos_token_id", len(tokens))
    ends = [keys.token_id(name, len(tokens)) for name in ("eot_token_id", "eom_token_id")]
    return TokenizerSpec(
        kind="bpe" if is_bpe else "sentencepiece",
        tokens=tokens,
        scores=[] if is_bpe else keys.reals("scores", len(tokens)),
        token_types=types,
        merges=merges,
        pre_tokenizer=pre_tokenizer,
        added_tokens=[] if is_bpe else _stripping(gguf, tokens, types),
        bos_id=keys.token_id("bos_token_id", len(tokens)),
        eos_ids=end_ids([eos_id, *ends], tokens, types),
        unk_id=keys.token_id("unknown_token_id", len(tokens)),
        add_bos=keys.flag("add_bos_token", not is_bpe or pre_tokenizer in _BOS_PRE_TOKENIZERS),
        add_space_prefix=keys.flag("add_space_prefix", not is_bpe),
        chat_template=_chat_template(gguf),
        vocab_size=len(tokens),
    )


def end_ids(named: list[int | None], tokens: list[str], types: list[int]) -> list[int]:
    """Ids that end a text, without repeats: the named ones, then control tokens by their text."""
    ids = [token_id for token_id in named if token_id is not None]
    wanted = set(END_TOKENS)
    for token_id, token in enumerate(tokens):
        if token in wanted and (not types or types[token_id] == TokenType.CONTROL):
            ids.append(token_id)
    return list(dict.fromkeys(ids))[:MAX_EOS_IDS]


def _stripping(gguf: GgufFile, tokens: list[str], types: list[int]) -> list[AddedToken]:
    """Phi-3's special tokens that eat the white space behind them, as in its tokenizer.json."""
    if gguf.metadata.get("general.architecture") != "phi3" or not types:
        return []
    return [
        AddedToken(token_id, token, special=True, rstrip=True)
        for token_id, token in enumerate(tokens)
        if types[token_id] == TokenType.CONTROL and token not in _PHI3_KEEPING
    ]


class _Keys:
    """Typed access to ``tokenizer.ggml.<key>``."""

    def __init__(self, gguf: GgufFile) -> None:
        self.path = gguf.path
        self.metadata = gguf.metadata

    def _value(self, key: str) -> tuple[str, Value | None]:
        field = f"tokenizer.ggml.{key}"
        return field, self.metadata.get(field)

    def text(self, key: str, default: str | None = None) -> str:
        field, value = self._value(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise bad_field(self.path, field, "is missing or not text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        field, value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad_field(self.path, field, "is not a boolean", str(value)[:80])
        return value

    def texts(self, key: str) -> list[str]:
        field, value = self._value(key)
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            raise bad_field(self.path, field, "is missing or not a list of texts")
        return value  # type: ignore[return-value]  # all elements of an array have one type

    def integers(self, key: str, length: int) -> list[int]:
        """A list of ``length`` integers; empty when the key is missing."""
        field, value = self._value(key)
        if value is None:
            return []
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise bad_field(self.path, field, "is not a list of integers")
        self._check_length(field, len(value), length)
        return value  # type: ignore[return-value]  # every element was just checked

    def reals(self, key: str, length: int) -> list[float]:
        field, value = self._value(key)
        if not isinstance(value, list) or any(type(item) is not float for item in value):
            raise bad_field(self.path, field, "is missing or not a list of numbers")
        self._check_length(field, len(value), length)
        return value  # type: ignore[return-value]  # every element was just checked

    def _check_length(self, field: str, length: int, num_tokens: int) -> None:
        if length != num_tokens:
            limit = f"{num_tokens}, the number of tokens"
            raise bad_field(self.path, f"{field} (length)", "does not fit", length, limit)

    def token_id(self, key: str, num_tokens: int) -> int | None:
        field, value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < num_tokens:
            limit = f"[0, {num_tokens})"
            raise bad_field(self.path, field, "is no token of the vocabulary", str(value), limit)
        return value


def _check_merges(gguf: GgufFile, tokens: list[str], merges: list[str]) -> None:
    """Each merge must name two tokens that join to a third."""
    known = set(tokens)
    if len(known) != len(tokens):
        raise bad_field(gguf.path, "tokenizer.ggml.tokens", "has a token twice")
    for index, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left in known and right in known and left + right in known:
            continue
        field = f"tokenizer.ggml.merges[{index}]"
        raise bad_field(gguf.path, field, "does not fit the vocabulary", merge[:80])


def _chat_template(gguf: GgufFile) -> str | None:
    field = "tokenizer.chat_template"
    template = gguf.metadata.get(field)
    if template is None:
        return None
    if not isinstance(template, str):
        raise bad_field(gguf.path, field, "is not text")
    if len(template) > MAX_TEMPLATE_CHARS:
        raise bad_field(gguf.path, field, "is too long", len(template), MAX_TEMPLATE_CHARS)
    return template or None
