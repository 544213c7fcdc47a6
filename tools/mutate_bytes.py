"""Damage to bytes that knows nothing of what they mean, and values that readers stumble over."""

from __future__ import annotations

import random
import struct

#: What counts, lengths, dimensions and offsets are replaced with.
HOSTILE_INTEGERS = (
    *(0, 1, 2, 3, 7, 31, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
HOSTILE_REALS = (0.0, -0.0, -1.0, 1e-45, 1e-300, 1e38, 1e308, float("inf"), float("-inf"))
NAN = float("nan")

#: Chat templates that compute for ever, grow for ever, reach out of their sandbox, or are none.
HOSTILE_TEMPLATES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].environ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}",
    "{{ 'x' * 10**12 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ messages | map(attribute='content') | join('x' * 10**9) }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{% for message in messages %}",
    "{{ " + "(" * 4000,
    "{{" * 4000,
    "{% if true %}" * 300 + "x" + "{% endif %}" * 300,
    "{{ messages[10**9].content }}",
    "{{ raise_exception('no') }}",
    "{{ '%s' % ('x' * 10**8) }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "\ufeff{# only a remark #}",
    "",
)
#: Texts for names, tokens, merges and paths.
HOSTILE_TEXTS = (
    *("", "\0", " ", "../../../etc/passwd", "/dev/zero", "x" * 70_000, "\u202e", "\U0010ffff"),
    *("%s%n", "{{ 7 * 7 }}", "nan", "-1", "true", "[]", "gguf", "llama", "a b c"),
)


def mutate_bytes(content: bytes, dice: random.Random) -> tuple[str, bytes]:
    """One damage anywhere, more often near the beginning; what it was, and the new content."""
    damaged = bytearray(content)
    if len(damaged) < 16:
        return "16 random bytes appended", content + dice.randbytes(16)
    reach = dice.choice((64, 4096, len(damaged)))
    position = dice.randrange(min(reach, len(damaged) - 8))
    match dice.randrange(8):
        case 0:
            bit = dice.randrange(8)
            damaged[position] ^= 1 << bit
            what = f"bit {bit} of byte {position} flipped"
        case 1:
            damaged[position] = dice.randrange(256)
            what = f"byte {position} set to {damaged[position]}"
        case 2:
            number = dice.choice(HOSTILE_INTEGERS)
            struct.pack_into("<Q", damaged, position, number)
            what = f"u64 at {position} set to {number}"
        case 3:
            number = dice.choice(HOSTILE_INTEGERS) & 0xFFFFFFFF
            struct.pack_into("<I", damaged, position, number)
            what = f"u32 at {position} set to {number}"
        case 4:
            count = dice.randint(1, 64)
            del damaged[position : position + count]
            what = f"{count} bytes at {position} deleted"
        case 5:
            count = dice.randint(1, 64)
            damaged[position:position] = dice.randbytes(count)
            what = f"{count} bytes inserted at {position}"
        case 6:
            count = dice.randint(1, 256)
            other = dice.randrange(len(damaged))
            damaged[position : position + count] = damaged[other : other + count]
            what = f"{count} bytes at {position} overwritten with those at {other}"
        case _:
            stop = dice.randrange(len(damaged))
            del damaged[stop:]
            what = f"cut off at {stop}"
    return what, bytes(damaged)
