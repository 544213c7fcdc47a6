"""Some layers of a model on the device, launched as a decode step launches them.

What a kernel costs in a step shows only there: its programs start while the kernel before ends, and
its weights are on the way by then. So choices are timed in here, on weights that no cache holds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from hybridgen.models.kernels.attention import AttentionChoice, attention_needs, decode_attention
from hybridgen.models.kernels.linear import LinearWeights, linear, linear_needs, scratch_needs
from hybridgen.models.kernels.linear_choice import LinearChoice, LinearShape
from hybridgen.models.kernels.paged_cache import PagedCache
from hybridgen.models.kernels.workspace import Workspace
from tools.kernel_candidates import NORMED
from tools.model_shapes import ModelShape, weight_bytes, weight_rows

BLOCK_SIZE = 16
BF16 = torch.bfloat16

Choices = dict[str, LinearChoice]


class Plan(NamedTuple):
    """How a chain is launched, and the workspace for it."""

    choices: Choices
    attention: AttentionChoice
    workspace: Workspace


class Pool:
    """Random bytes on the device, dealt out as weights and as keys and values."""

    def __init__(self, num_bytes: int) -> None:
        numbers = torch.empty(num_bytes // 2, dtype=BF16, device="cuda").normal_()
        self._bytes = numbers.view(torch.uint8)
        self._taken = 0

    def clear(self) -> None:
        """Everything may be dealt out again."""
        self._taken = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """The next bytes; from the start again where there are no more."""
        if self._taken + num_bytes > len(self._bytes):
            self._taken = 0
        begin = self._taken
        self._taken += -(-num_bytes // 4096) * 4096
        return self._bytes[begin : begin + num_bytes]

    def weights(self, shape: LinearShape, *, has_norm: bool) -> LinearWeights:
        """Weights of a product; the norm's are float32, as its kernels like them best."""
        dtype = torch.int8 if shape.weight_bits == 8 else BF16
        matrix = self.take(weight_bytes(shape)).view(dtype).view(weight_rows(shape), shape.size)
        scales = norm = None
        if shape.weight_bits == 8:
            scales = torch.full((len(matrix),), 0.01, device="cuda")
        if has_norm:
            norm = torch.ones(shape.size, dtype=torch.float32, device="cuda")
        return LinearWeights(matrix, scales=scales, is_gated=shape.is_gated, norm=norm)


class Layer(NamedTuple):
    """Weights, and keys and values."""

    products: dict[str, LinearWeights]
    cache: PagedCache


class LayerChain:
    """Layers of a model for one batch, all rows at the same position.

    Args:
        model: its shape.
        batch: rows.
        bits: of a weight.
        pool: what weights, keys and values are taken from.
        num_layers: as many as the caches of the device cannot hold.
        context: positions before the new token.
    """

    def __init__(
        self,
        model: ModelShape,
        batch: int,
        bits: int,
        pool: Pool,
        *,
        num_layers: int,
        context: int,
    ) -> None:
        pool.clear()
        self.model, self.batch = model, batch
        self.shapes = model.products(bits)
        width = context // BLOCK_SIZE + 1
        q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        pages = (batch * width, model.num_kv_heads, BLOCK_SIZE, model.head_dim)
        num_bytes = 2 * batch * width * kv_size * BLOCK_SIZE
        self.layers = [
            Layer(
                {
                    name: pool.weights(shape, has_norm=name in NORMED)
                    for name, shape in self.shapes.items()
                    if name != "head"
                },
                PagedCache(*(pool.take(num_bytes).view(BF16).view(pages) for _ in range(2))),
            )
            for _ in range(num_layers)
        ]
        self.head = pool.weights(self.shapes["head"], has_norm=True)

        def rows(size: int) -> torch.Tensor:
            return torch.randn(batch, size, dtype=BF16, device="cuda")

        self.hidden, self.inner = rows(model.hidden), rows(model.inner)
        self.qkv, self.attended = rows(q_size + 2 * kv_size), rows(q_size)
        self.logits = torch.empty(batch, model.vocab_size, dtype=torch.float32, device="cuda")
        angles = torch.rand(context + 1, model.head_dim // 2, device="cuda") * 6
        self.rope = (angles.cos(), angles.sin())
        self.positions = torch.full((batch,), context, dtype=torch.int32, device="cuda")
        self.tables = torch.randperm(batch * width, device="cuda").int().view(batch, width)

    def plan(self, choices: Choices, attention: AttentionChoice) -> Plan:
        """These choices with as much workspace as they need."""
        model, library = self.model, LinearChoice("library")
        needs = [linear_needs(self.batch, self.shapes[name], choices[name]) for name in choices]
        group = model.num_heads // model.num_kv_heads
        needs.append(
            attention_needs(self.batch, model.num_kv_heads, group, model.head_dim, attention)
        )
        elements = [scratch_needs(self.batch, shape, library) for shape in self.shapes.values()]
        workspace = Workspace(
            "cuda",
            num_floats=max(floats for floats, _ in needs),
            num_counters=max(counters for _, counters in needs),
            num_elements=max(elements),
        )
        return Plan(choices, attention, workspace)

    def run(self, plan: Plan) -> None:
        """Launch all layers."""
        for layer in self.layers:
            self.run_attention(layer, plan)
            self._project(layer, "gate_up", self.hidden, self.inner, plan)
            self._project(layer, "down", self.inner, self.hidden, plan)

    def run_attention(self, layer: Layer, plan: Plan) -> None:
        """Launch the first half of a layer."""
        self._project(layer, "qkv", self.hidden, self.qkv, plan)
        decode_attention(
            self.qkv, layer.cache, self.attended, self.rope, self.positions, self.tables,
            num_heads=self.model.num_heads,
            workspace=plan.workspace, choice=plan.attention, is_chained=True,
        )  # fmt: skip
        self._project(layer, "output", self.attended, self.hidden, plan)

    def run_head(self, plan: Plan) -> None:
        """Launch the end of a step: the last product of the last layer, and the output matrix."""
        self._project(self.layers[-1], "down", self.inner, self.hidden, plan)
        linear(
            self.hidden, self.head, self.logits,
            workspace=plan.workspace, choice=plan.choices["head"], is_chained=True,
        )  # fmt: skip

    def product_error(self, name: str, plan: Plan) -> float:
        """‖out − ref‖ / ‖ref‖ of a product without residual, poisoned output, random input."""
        weights = self.layers[0].products[name]
        x = torch.randn(self.batch, weights.shape.size, dtype=BF16, device="cuda")
        out = torch.full((self.batch, weights.shape.num_rows), torch.nan, device="cuda")
        linear(
            x, weights, out,
            workspace=plan.workspace, choice=plan.choices[name], is_chained=True,
        )  # fmt: skip
        wide = x.float()
        if weights.norm is not None:
            wide = torch.nn.functional.rms_norm(wide, wide.shape[1:], weights.norm, weights.epsilon)
        reference = wide @ weights.weight.float().T
        if weights.scales is not None:
            reference *= weights.scales
        if weights.is_gated:
            gate, up = reference.chunk(2, -1)
            reference = torch.nn.functional.silu(gate) * up
        return float((out - reference).norm() / reference.norm())

    def _project(
        self, layer: Layer, name: str, x: torch.Tensor, out: torch.Tensor, plan: Plan
    ) -> None:
        linear(
            x, layer.products[name], out,
            workspace=plan.workspace, choice=plan.choices[name], is_chained=True,
            residual=None if name in NORMED else out,
        )  # fmt: skip
