"""Matrix products of the models that the kernels are measured on."""

from __future__ import annotations

from typing import NamedTuple

from hybridgen.models.kernels.linear_choice import LinearShape


class ModelShape(NamedTuple):
    """A Llama-family model by its sizes."""

    name: str
    hidden: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_layers: int

    def products(self, weight_bits: int = 16) -> dict[str, LinearShape]:
        """Name → shape of a layer's products and of the output matrix."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "qkv": LinearShape(q_size + 2 * kv_size, self.hidden, False, weight_bits),
            "output": LinearShape(self.hidden, q_size, False, weight_bits),
            "gate_up": LinearShape(self.inner, self.hidden, True, weight_bits),
            "down": LinearShape(self.hidden, self.inner, False, weight_bits),
            "head": LinearShape(self.vocab_size, self.hidden, False, weight_bits),
        }

    def times(self, product: str) -> int:
        """How often a step makes a product."""
        return 1 if product == "head" else self.num_layers


MODELS = {
    "13b": ModelShape("13b", 5120, 13824, 40, 40, 128, 32000, 40),
    "8b": ModelShape("8b", 4096, 14336, 32, 8, 128, 128256, 32),
}


def weight_rows(shape: LinearShape) -> int:
    """Rows of the matrix in memory."""
    return shape.num_rows * (2 if shape.is_gated else 1)


def weight_bytes(shape: LinearShape) -> int:
    """Bytes that a product must read."""
    return weight_rows(shape) * shape.size * shape.weight_bits // 8
