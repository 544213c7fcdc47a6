"""Can this model be served as it stands? What a dry run looks at; nothing is computed."""

from __future__ import annotations

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, HybridGenError, InvalidRequest
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.stored_rows import stored_rows
from hybridgen.request import ChatMessage, ChatPrompt
from hybridgen.text.prompt_encoder import build_prompt_encoder
from hybridgen.text.template_source import template_source
from hybridgen.text.tokenizer import Tokenizer, build_tokenizer

#: The first must come back from every tokenizer; small vocabularies may lose parts of the others.
TEXTS = (
    "Hello, world! 3.14 is less than 22/7.",
    "def f(x):\n\treturn {'a': [x] * 2}  # \u00fcber\n",
    "\u00c5ngstr\u00f6m, na\u00efve, \u0395\u03bb\u03bb\u03ac\u03b4\u03b1",
    "\u65e5\u672c\u8a9e, \ud55c\uad6d\uc5b4, \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\U0001f642 \U0001f469\u200d\U0001f467",
)
MESSAGES = [
    ChatMessage(role="user", content="What is the capital of France?"),
    ChatMessage(role="assistant", content="Paris."),
    ChatMessage(role="user", content="And of Italy?"),
]


def check_model(info: ModelInfo, config: Config) -> list[tuple[str, str]]:
    """(what was looked at, what was found) for people.

    Raises:
        ModelError: naming the tensor or field, what was found and what was expected.
        ConfigError: the chat template that was given cannot be read.
    """
    return [
        ("weights", check_weights(info)),
        ("tokenizer", check_tokenizer(info, build_tokenizer(info.tokenizer))),
        ("template", check_template(info, config)),
    ]


def check_weights(info: ModelInfo) -> str:
    """Names, shapes and element types; ``inspect_model`` has compared the first two already."""
    if info.kind in ("mock", "dummy"):
        return "none"
    stored_rows(info)
    types = ", ".join(f"{count} {name}" for name, count in info.weight_types.items())
    return f"{info.config.num_parameters:,} parameters in tensors of the right shapes ({types})"


def check_tokenizer(info: ModelInfo, tokenizer: Tokenizer) -> str:
    """Texts there and back, and its vocabulary beside the model's."""
    spare = tokenizer.vocab_size - info.config.vocab_size
    lost = 0
    for number, text in enumerate(TEXTS):
        ids = tokenizer.encode(text)
        back = tokenizer.decode(ids)
        if back != text and number == 0:
            raise _bad(info, "tokenizer", "does not give a text back", repr(back[:80]), repr(text))
        lost += back != text
    loss = f", {lost} of them not wholly: it lacks characters" if lost else ""
    loss += f"; {spare} tokens that the model does not know" if spare > 0 else ""
    return (
        f"{info.tokenizer.kind}, {tokenizer.vocab_size} tokens; {len(TEXTS)} texts encoded and "
        f"decoded{loss}"
    )


def check_template(info: ModelInfo, config: Config) -> str:
    """The chat template renders a conversation."""
    if template_source(info.tokenizer, config.model.chat_template) is None:
        return "none: prompts are plain texts"
    encoder = build_prompt_encoder(info.tokenizer, config.model.chat_template)
    try:
        ids = encoder.encode(ChatPrompt(messages=MESSAGES))
    except InvalidRequest as error:
        raise _bad(info, "chat_template", f"cannot be used: {error.message}", None, None) from None
    return f"{len(MESSAGES)} messages become {len(ids)} tokens"


def _bad(
    info: ModelInfo, field: str, problem: str, value: str | int | None, limit: str | int | None
) -> HybridGenError:
    return BadModelFile(
        f"{field} of {info.name} {problem}",
        field=field,
        value=value,
        limit=limit,
        remedy="Fetch or convert the model again",
        file=info.path,
    )
