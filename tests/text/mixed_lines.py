"""Lines of everything that texts are made of, the same ones each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

NUM_LINES = 10_000

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "It's 2024, isn't it? I'D say they'LL come; we've 1,234.50 € and ½ of it.",
    "Die Größe überrascht: Straße, Äpfel, ſpät, ẞ.",
    "Ça coûte déjà 3 000 francs, n'est-ce pas ?",
    "¿Qué pasó, señor? ¡Mañana será otro día!",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Ο Ηρόδοτος έγραψε ιστορία· τί κάνεις;",
    "色は匂へど散りぬるを、我が世誰ぞ常ならむ。",
    "カタカナとﾊﾝｶｸ、そして漢字。",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "키스의 고유조건은 입술끼리 만나야 한다.",
    "צוהר לקראת הבית שלום עליכם",
    "أبجد هوز حطي كلمن ٠١٢٣٤٥٦٧٨٩",
    "नमस्ते दुनिया, यह हिन्दी है। १२३",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "Tiếng Việt có nhiều dấu: ấ ầ ẩ ẫ ậ.",
    "İstanbul'da ışık, ğüşöç",
    "ქართული ენა; հայերեն; አማርኛ",
)  # fmt: skip
_CODE = (
    "def f(x: int) -> int:\n    return x**2  # square\n",
    "\tif (a[i] != b->c && *p++) { goto end; }\r\n",
    "SELECT * FROM t WHERE id='7' AND x IS NOT NULL;--",
    '{"key": [1, 2.5e-3, null, true], "s": "a\\u00e9\\n"}',
    "<div class=\"x\">&nbsp;<br/></div>",
    "$ ls -la | grep '^d' > /dev/null 2>&1",
    "let v: Vec<u8> = vec![0x1F; 16];\n\n\n",
    "https://example.org/a/b?c=d&e=%20#f",
)  # fmt: skip
_EMOJI = "🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "☃", "𝔘𝔫𝔦", "🤦🏼‍♂️"
_SPACES = (
    " ", "  ", "   ", "       ", "\t", "\n", "\r\n", "\n\n\n",
    "\u00a0", "\u3000", "\u2003", "\u200b",
)  # fmt: skip
_CONTROLS = (
    "\x00", "\x01", "\x07", "\x0b", "\x0c", "\x1b[0m", "\x7f", "\x85",
    "\u2028", "\ufeff", "\u202e",
)  # fmt: skip
_ODD = (
    "\ufffd", "\ufffe", "\uffff", "\ufdd0", "\ue000", "\U000e0001", "\U0010ffff", "e\u0301\u0323",
    "\u0301", "ﬁ", "Å", "Ａ", "①", "Ⅷ", "²", "٣", "a\u200db", "▁", "▁▁a", "Ġ",
    "<0x41>", "\u1e9b\u0323",
)  # fmt: skip
_ENDINGS = "'s", "'S", "'ll", "'LL", "'re", "'Ve", "'m", "'d", "'ſ", "n't", "’s", "'tis"
SPECIALS = (
    "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>",
    "<|eot_id|>", "<start_of_turn>", "<bos>", "[INST]", "[/INST]", "<|user|>", "<|end|>",
    "<think>", "</think>", "<|im_", "end|>",
)  # fmt: skip


def mixed_lines(num_lines: int = NUM_LINES, seed: int = 1) -> list[str]:
    """``num_lines`` texts, most of some 60 characters, without lone surrogates."""
    source = random.Random(seed)
    return ["".join(_parts(source)) for _ in range(num_lines)]


def _parts(source: random.Random) -> list[str]:
    kinds: list[Callable[[random.Random], str]] = [
        _words, _words, _words, _number, _some_of(_CODE), _some_of(_EMOJI), _some_of(_SPACES),
        _some_of(_CONTROLS), _some_of(_ODD), _some_of(_ENDINGS), _some_of(SPECIALS),
        _any_characters,
    ]  # fmt: skip
    return [source.choice(kinds)(source) for _ in range(source.randint(1, 9))]


def _some_of(texts: Sequence[str]) -> Callable[[random.Random], str]:
    return lambda source: source.choice(texts)


def _words(source: random.Random) -> str:
    words = source.choice(_SENTENCES).split(" ")
    start = source.randrange(len(words))
    text = source.choice((" ", "")) + " ".join(words[start : start + source.randint(1, 6)])
    return text.upper() if source.random() < 0.1 else text


def _number(source: random.Random) -> str:
    return source.choice((" ", "", "-", "$")) + str(source.randrange(10 ** source.randint(1, 12)))


def _any_characters(source: random.Random) -> str:
    highest = source.choice((0x7F, 0xFF, 0x7FF, 0xFFFF, 0x10FFFF))
    codes = (source.randint(0, highest) for _ in range(source.randint(1, 4)))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
