"""Element types of GGUF tensors, and how many bytes they take.

Numbers from the GGUF/ggml specification (``enum ggml_type`` and the block structures).
"""

from __future__ import annotations

from typing import NamedTuple


class ElementType(NamedTuple):
    """A storage format: ``block_size`` elements of a row share ``block_bytes`` bytes."""

    name: str
    block_size: int
    block_bytes: int


ELEMENT_TYPES: dict[int, ElementType] = {
    0: ElementType("F32", 1, 4),
    1: ElementType("F16", 1, 2),
    2: ElementType("Q4_0", 32, 18),
    3: ElementType("Q4_1", 32, 20),
    6: ElementType("Q5_0", 32, 22),
    7: ElementType("Q5_1", 32, 24),
    8: ElementType("Q8_0", 32, 34),
    9: ElementType("Q8_1", 32, 40),
    10: ElementType("Q2_K", 256, 84),
    11: ElementType("Q3_K", 256, 110),
    12: ElementType("Q4_K", 256, 144),
    13: ElementType("Q5_K", 256, 176),
    14: ElementType("Q6_K", 256, 210),
    15: ElementType("Q8_K", 256, 292),
    16: ElementType("IQ2_XXS", 256, 66),
    17: ElementType("IQ2_XS", 256, 74),
    18: ElementType("IQ3_XXS", 256, 98),
    19: ElementType("IQ1_S", 256, 50),
    20: ElementType("IQ4_NL", 32, 18),
    21: ElementType("IQ3_S", 256, 110),
    22: ElementType("IQ2_S", 256, 82),
    23: ElementType("IQ4_XS", 256, 136),
    24: ElementType("I8", 1, 1),
    25: ElementType("I16", 1, 2),
    26: ElementType("I32", 1, 4),
    27: ElementType("I64", 1, 8),
    28: ElementType("F64", 1, 8),
    29: ElementType("IQ1_M", 256, 56),
    30: ElementType("BF16", 1, 2),
    34: ElementType("TQ1_0", 256, 54),
    35: ElementType("TQ2_0", 256, 66),
    39: ElementType("MXFP4", 32, 17),
    40: ElementType("NVFP4", 64, 36),
    41: ElementType("Q1_0", 128, 18),
}
#: Those that can be turned into floats: the rest hold what no weights are made of.
READABLE = frozenset(element.name for element in ELEMENT_TYPES.values()) - frozenset(
    ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "Q1_0")
)
