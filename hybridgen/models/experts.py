"""Experts on the CPU: their panels, the work space of a batch, and the checked door to the kernel.

Of the weights a batch touches only those of experts that some token chose. What a token gets
depends on nothing else in the batch, bit for bit; see experts.h.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from hybridgen.errors import InternalError
from hybridgen.models import _native
from hybridgen.models.compute_pool import ComputePool
from hybridgen.models.config import Experts
from hybridgen.models.layers import (
    DTYPE_CODES,
    Epilogue,
    PackedMatrix,
    activation_rows,
    panel_bytes,
)
from hybridgen.models.records import ExpertsRecord, MixtureRecord, encode_record

Weight = Callable[[str], torch.Tensor]
Allocate = Callable[[int], torch.Tensor]


def expert_bytes(experts: Experts, hidden_size: int, dtype: torch.dtype) -> int:
    """Bytes of the panels of one layer."""
    parts = [
        (experts.num_router_rows, hidden_size, False, 1),
        (experts.size, hidden_size, True, experts.num_experts),
        (hidden_size, experts.size, False, experts.num_experts),
    ]
    if experts.shared_size:
        parts += [
            (experts.shared_size, hidden_size, True, 1),
            (hidden_size, experts.shared_size, False, 1),
        ]
    return sum(
        count * panel_bytes(num_outputs, depth, dtype, is_paired)
        for num_outputs, depth, is_paired, count in parts
    )


class PackedExperts:
    """The weights of one layer in panels; those of its experts lie behind each other.

    Args:
        pool: does the packing.
        experts: of the model.
        weight: name below ``mlp.`` → tensor as in ``weight_names``, any float dtype.
        dtype: of the panels, torch.float32 or torch.bfloat16.
        allocate: number of bytes → uint8 tensor that receives panels.
    """

    def __init__(
        self,
        pool: ComputePool,
        experts: Experts,
        weight: Weight,
        dtype: torch.dtype,
        allocate: Allocate | None = None,
    ) -> None:
        self.experts = experts
        self.dtype = dtype
        self._pool = pool
        self._allocate = allocate or (lambda size: torch.empty(size, dtype=torch.uint8))
        router = weight("gate.weight")
        self.hidden_size = router.shape[1]
        if experts.shared_size:
            router = torch.cat([router, weight("shared_expert_gate.weight")])
        self._router = self._stack(router[None])
        self._gate_up = self._stack(weight("experts.gate_up_proj"), is_paired=True)
        self._down = self._stack(weight("experts.down_proj"))
        self._shared_gate_up = self._shared_down = torch.empty(1, 0, dtype=torch.uint8)
        if experts.shared_size:
            shared_gate_up = weight("shared_expert.gate_up_proj.weight")
            self._shared_gate_up = self._stack(shared_gate_up[None], is_paired=True)
            self._shared_down = self._stack(weight("shared_expert.down_proj.weight")[None])

    def record(self, space: ExpertSpace, gate: Epilogue) -> ExpertsRecord:
        """What the kernel reads; both must outlive it. ``gate`` is of the gated products."""
        experts = self.experts
        return ExpertsRecord(
            router=self._router.data_ptr(),
            gate_up=self._gate_up.data_ptr(),
            down=self._down.data_ptr(),
            shared_gate_up=self._shared_gate_up.data_ptr(),
            shared_down=self._shared_down.data_ptr(),
            gate_up_bytes=self._gate_up.stride(0),
            down_bytes=self._down.stride(0),
            num_experts=experts.num_experts,
            num_chosen=experts.num_chosen,
            size=experts.size,
            shared_size=experts.shared_size,
            hidden_size=self.hidden_size,
            dtype=DTYPE_CODES[self.dtype],
            gate=int(gate),
            is_share_normalized=int(experts.is_share_normalized),
            logits=space.logits.data_ptr(),
            shares=space.shares.data_ptr(),
            chosen=space.chosen.data_ptr(),
            places=space.places.data_ptr(),
            ends=space.ends.data_ptr(),
            active=space.active.data_ptr(),
            rows=space.rows.data_ptr(),
            inner=space.inner.data_ptr(),
            shared_inner=space.shared_inner.data_ptr(),
            logits_stride=space.logits.stride(0),
            rows_stride=space.rows.stride(0),
            inner_stride=space.inner.stride(0),
            shared_inner_stride=space.shared_inner.stride(0),
        )

    def _stack(self, weight: torch.Tensor, *, is_paired: bool = False) -> torch.Tensor:
        """uint8[count, bytes of one] from [count, num_rows, depth]; paired: gates, then ups."""
        count, num_rows, depth = weight.shape
        num_outputs = num_rows // 2 if is_paired else num_rows
        num_bytes = panel_bytes(num_outputs, depth, self.dtype, is_paired)
        panels = self._allocate(count * num_bytes).view(count, num_bytes)
        for matrix, target in zip(weight, panels, strict=True):
            halves = matrix.to(self.dtype).contiguous().chunk(2 if is_paired else 1)
            PackedMatrix(self._pool, *halves, panels=target)
        return panels


class ExpertSpace:
    """What a batch of up to ``max_rows`` tokens needs; one for all layers. See experts.h."""

    def __init__(self, experts: Experts, hidden_size: int, max_rows: int) -> None:
        self.max_rows = max_rows
        num_choices = max_rows * experts.num_chosen
        num_shared = max_rows if experts.shared_size else 0
        self.logits = activation_rows(max_rows, experts.num_router_rows)
        self.shares = torch.empty(num_choices)
        self.chosen, self.places, self.ends, self.active = (
            torch.empty(size, dtype=torch.int32)
            for size in (num_choices, num_choices, experts.num_experts, 1 + experts.num_experts)
        )
        self.rows = activation_rows(num_choices + num_shared, hidden_size)
        self.inner = activation_rows(num_choices, experts.size)
        self.shared_inner = activation_rows(num_shared, experts.shared_size)


def mix(
    pool: ComputePool,
    x: torch.Tensor,
    packed: PackedExperts,
    space: ExpertSpace,
    out: torch.Tensor,
    *,
    gate: Epilogue = Epilogue.SWIGLU,
    is_added: bool = False,
) -> torch.Tensor:
    """``out`` [n, hidden_size] from ``x`` [n, hidden_size], both float32; rows may be strided.

    Args:
        pool: does the work.
        x: input.
        packed: the experts.
        space: for n tokens or more.
        out: stored to, or added to; may be ``x``.
        gate: of the gated products.
        is_added: which of both.

    Raises:
        InternalError: shapes do not fit.
    """
    shape = (len(x), packed.hidden_size)
    for name, tensor in (("x", x), ("out", out)):
        is_matrix = tensor.dtype == torch.float32 and tensor.shape == shape
        if not is_matrix or tensor.stride(1) != 1 or not 1 <= len(tensor) <= space.max_rows:
            raise InternalError(
                f"{name} does not fit the experts",
                value=f"{tensor.dtype}{list(tensor.shape)}",
                limit=f"at most {space.max_rows} rows of {packed.hidden_size} float32",
            )
    experts = np.frombuffer(encode_record(packed.record(space, gate)), np.uint8)
    record = MixtureRecord(
        experts=experts.ctypes.data,
        x=x.data_ptr(),
        y=out.data_ptr(),
        x_stride=x.stride(0),
        y_stride=out.stride(0),
        num_rows=len(x),
        is_added=int(is_added),
    )
    _native.mix(pool.handle, encode_record(record))
    return out
