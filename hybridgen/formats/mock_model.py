"""The mock model: a vocabulary of 512 tokens and a small chat template, and no weights.

Ids 0-255 are single bytes, so that any text can be encoded; 256-259 are control tokens; the
rest are pieces of several bytes. Some pieces end or begin inside a UTF-8 character on purpose:
whoever turns ids into text must cope with that.
"""

from __future__ import annotations

from hybridgen.config import Config
from hybridgen.formats.model_info import ModelInfo
from hybridgen.formats.tokenizer_spec import TokenizerSpec, TokenType
from hybridgen.models.config import ModelConfig

VOCAB_SIZE = 512
BOS_ID = 256
EOS_ID = 257
USER_ID = 258
ASSISTANT_ID = 259
CONTROL_TOKENS = ("<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{{ '<|bos|>' }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|eos|>' }}"
    "{% elif message['role'] in ('user', 'system') %}{{ '<|user|>' + message['content'] }}"
    "{% else %}{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_WORDS = (
    " the and of to in is it that was for on are as with his they be at one have this from or had "
    "by not word but what some we can out other were all there when up use your how said an each "
    "she which do their time if will way about many then them write would like so these her long "
    "make thing see him two has look more day could go come did number sound no most people my "
    "over know water than call first who may down side been now find"
)
#: Several characters, halves of characters, and characters joined to ASCII.
_HALVES = (
    "é".encode(),
    "日".encode(),
    "日".encode()[:2],
    "日".encode()[1:],
    "本".encode()[:2],
    "🙂".encode(),
    "🙂".encode()[:2],
    "🙂".encode()[2:],
    "🙂".encode()[:3],
    b"a" + "é".encode()[:1],
    "é".encode()[1:] + b"b",
    "日本".encode()[:4],
    "日本".encode()[4:],
    b"\xff\xfe",
    b"\xc0\x80",
    "e\u0301".encode(),
    "👩‍👧".encode()[:5],
    "👩‍👧".encode()[5:],
    "ß".encode(),
)


def token_bytes() -> list[bytes]:
    """Bytes of each of the 512 tokens; control tokens as their names."""
    tokens = [bytes([value]) for value in range(256)]
    tokens += [name.encode() for name in CONTROL_TOKENS]
    words = _WORDS.split()
    pieces = list(_HALVES)
    pieces += [b" " + word.encode() for word in words]
    pieces += [word.encode() for word in words if len(word) > 1]
    pieces += [b"\n\n", b". ", b", ", b"  ", b"    ", b"</", b"```"]
    seen = set(tokens)
    for piece in pieces:
        if piece not in seen and len(tokens) < VOCAB_SIZE:
            seen.add(piece)
            tokens.append(piece)
    for number in range(100):
        piece = b"%02d" % number
        if piece not in seen and len(tokens) < VOCAB_SIZE:
            tokens.append(piece)
    return tokens


def mock_model(config: Config) -> ModelInfo:
    """The mock model with the context length that ``config`` gives."""
    types = [TokenType.NORMAL] * VOCAB_SIZE
    for token_id in range(BOS_ID, ASSISTANT_ID + 1):
        types[token_id] = TokenType.CONTROL
    return ModelInfo(
        name="mock",
        path="mock",
        kind="mock",
        config=ModelConfig(
            architecture="mock",
            vocab_size=VOCAB_SIZE,
            num_layers=1,
            hidden_size=1,
            intermediate_size=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            max_position=config.mock.mock_max_model_len,
            bos_id=BOS_ID,
            eos_ids=[EOS_ID],
            activation="mock",
        ),
        tokenizer=TokenizerSpec(
            kind="mock",
            tokens=[token.decode("latin-1") for token in token_bytes()],
            token_types=[int(token_type) for token_type in types],
            bos_id=BOS_ID,
            eos_ids=[EOS_ID],
            chat_template=CHAT_TEMPLATE,
            vocab_size=VOCAB_SIZE,
        ),
    )
