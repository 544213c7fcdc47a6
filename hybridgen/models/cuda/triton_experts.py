"""A block of experts by the kernels of ``models/kernels``; nothing is read on the host."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridgen.errors import InternalError
from hybridgen.models.config import Experts
from hybridgen.models.cuda.expert_buffers import expert_buffers
from hybridgen.models.cuda.layers import FeedForward, Projection, Routing
from hybridgen.models.kernels.choose_experts import choose_experts
from hybridgen.models.kernels.expert_choice import choose_expert_tile, group_tile
from hybridgen.models.kernels.expert_groups import ExpertGroups, group_choices
from hybridgen.models.kernels.expert_product import ExpertMatrix, expert_product
from hybridgen.models.kernels.expert_sum import expert_sum
from hybridgen.models.kernels.norm import rms_norm

Project = Callable[[torch.Tensor, Projection, torch.Tensor], None]


class TritonExperts:
    """The buffers of one stream, and the way through them.

    Grids follow from the number of rows alone, so that a step can be captured into a CUDA graph;
    of the weights only the chosen experts' are read.

    Args:
        experts: of the model.
        hidden_size: of the model.
        max_rows: most tokens of a step.
        dtype: of the activations.
        device: where the buffers lie.
        project: plain products, as in ``Layers``.
        is_chained: see ``TritonLayers``.
    """

    def __init__(
        self,
        experts: Experts,
        hidden_size: int,
        max_rows: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        project: Project,
        is_chained: bool,
    ) -> None:
        dtypes = {"element": dtype, "float": torch.float32, "int": torch.int32}
        self._buffers = {
            name: torch.empty(buffer.shape, dtype=dtypes[buffer.kind], device=device)
            for name, buffer in expert_buffers(experts, hidden_size, max_rows).items()
        }
        self._experts = experts
        self._max_rows = max_rows
        self._project = project
        self._is_chained = is_chained

    def mix(
        self,
        x: torch.Tensor,
        block: FeedForward,
        out: torch.Tensor,
        residual: torch.Tensor | None,
        positions: torch.Tensor | None,
    ) -> None:
        """See ``Layers``."""
        routing, gate_up, down = block.routing, block.gate_up, block.down
        if routing is None or len(x) > self._max_rows:
            raise InternalError("experts were not given", value=len(x), limit=self._max_rows)
        normed = self._rows("normed", len(x))
        if gate_up.norm is None:
            normed = x
        else:
            rms_norm(x, gate_up.norm, normed, epsilon=gate_up.epsilon, is_chained=self._is_chained)
        self._choose(normed, routing, positions)
        self._multiply(normed, gate_up, down)
        shared, shared_gate = self._share(normed, routing)
        chosen, shares = self._rows("chosen", len(x)), self._rows("shares", len(x))
        rows = self._rows("rows", chosen.numel())
        total = out if down.post_norm is None else self._rows("normed", len(x))
        expert_sum(
            rows, chosen, shares, total,
            shared=shared, shared_gate=shared_gate,
            residual=residual if down.post_norm is None else None,
            is_chained=self._is_chained,
        )  # fmt: skip
        if down.post_norm is not None:
            rms_norm(
                total, down.post_norm, out,
                epsilon=down.epsilon, residual=residual, is_chained=self._is_chained,
            )  # fmt: skip

    def _choose(
        self, normed: torch.Tensor, routing: Routing, positions: torch.Tensor | None
    ) -> None:
        num_rows = len(normed)
        logits = self._rows("logits", num_rows)
        self._project(normed, routing.router, logits)
        choose_experts(
            logits,
            self._rows("chosen", num_rows),
            self._rows("shares", num_rows),
            num_experts=self._experts.num_experts,
            is_normalized=routing.is_share_normalized,
            positions=positions,
            is_chained=self._is_chained,
        )

    def _multiply(self, normed: torch.Tensor, gate_up: Projection, down: Projection) -> None:
        """Both products of the chosen experts."""
        count, num_chosen = self._experts.num_experts, self._experts.num_chosen
        chosen = self._rows("chosen", len(normed))
        num_choices = chosen.numel()
        inner, rows = self._rows("inner", num_choices), self._rows("rows", num_choices)
        buffers = self._buffers
        groups = ExpertGroups(buffers["order"], buffers["tiles"], buffers["num_tiles"])
        group_choices(
            chosen, groups,
            num_experts=count, block_b=group_tile(num_choices, count), is_chained=self._is_chained,
        )  # fmt: skip
        for x, projection, out in ((normed, gate_up, inner), (inner, down, rows)):
            bits = 8 * projection.weight.element_size()
            tile = choose_expert_tile(num_choices, count, out.shape[1], bits)
            matrix = ExpertMatrix(
                projection.weight, projection.scales, projection.is_gated, projection.is_gelu
            )
            expert_product(
                x, matrix, groups, out,
                num_chosen=num_chosen, num_choices=num_choices, tile=tile,
                is_chained=self._is_chained,
            )  # fmt: skip

    def _share(
        self, normed: torch.Tensor, routing: Routing
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """What the shared expert makes of all tokens, and the logits of its gate."""
        if routing.shared is None:
            return None, None
        inner, out = (self._rows(name, len(normed)) for name in ("shared_inner", "shared"))
        self._project(normed, routing.shared.gate_up, inner)
        self._project(inner, routing.shared.down, out)
        return out, self._rows("logits", len(normed))[:, self._experts.num_experts]

    def _rows(self, name: str, num_rows: int) -> torch.Tensor:
        return self._buffers[name][:num_rows]
