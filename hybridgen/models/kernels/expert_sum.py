"""What a token gets from its experts, added up in the order of their shares."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer

_BLOCK = 1024


@triton.jit
def _expert_sum_kernel(
    rows: tl.tensor,
    chosen: tl.tensor,
    shares: tl.tensor,
    shared: tl.tensor,
    shared_gate: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    shared_stride: tl.tensor,
    gate_stride: tl.tensor,
    residual_stride: tl.tensor,
    out_stride: tl.tensor,
    NUM_CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = k < size
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    total = tl.zeros([BLOCK], tl.float32)
    for rank in range(NUM_CHOSEN):
        choice = token * NUM_CHOSEN + rank
        share = tl.load(shares + choice)
        is_busy = is_inside & (tl.load(chosen + choice) >= 0)  # nothing stands in idle rows
        total += share * tl.load(rows + choice * size + k, mask=is_busy, other=0.0)
    if shared is not None:
        gate = tl.sigmoid(tl.load(shared_gate + token * gate_stride))
        row = tl.load(shared + token * shared_stride + k, mask=is_inside, other=0.0)
        total += gate * row.to(tl.float32)
    if residual is not None:
        row = tl.load(residual + token * residual_stride + k, mask=is_inside, other=0.0)
        total += row.to(tl.float32)
    tl.store(out + token * out_stride + k, total.to(out.dtype.element_ty), mask=is_inside)


def expert_sum(
    rows: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    out: torch.Tensor,
    *,
    shared: torch.Tensor | None = None,
    shared_gate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    is_chained: bool = False,
) -> None:
    """Out = (residual +) Σ share · row (+ sigmoid(shared_gate) · shared), in float32, rounded once.

    Reads num_choices · size floats and writes num_tokens · size elements. The order is that of the
    choices: deterministic.

    Args:
        rows: float32[num_choices, size], contiguous.
        chosen: int32[num_tokens, num_chosen]; -1 for idle rows, which get no experts.
        shares: float32[num_tokens, num_chosen].
        out: [num_tokens, size], any float dtype.
        shared: [num_tokens, size], output of a shared expert.
        shared_gate: float32[num_tokens], any stride.
        residual: [num_tokens, size]; may be ``out``.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: operands do not fit.
    """
    num_tokens, num_chosen = chosen.shape
    size = out.shape[1]
    wanted = (num_tokens, size)
    problems = {
        "rows": rows.shape != (num_tokens * num_chosen, size)
        or rows.dtype != torch.float32
        or not rows.is_contiguous(),
        "chosen": chosen.dtype != torch.int32 or not chosen.is_contiguous(),
        "shares": shares.shape != chosen.shape or not shares.is_contiguous(),
        "out": out.shape != wanted or out.stride(1) != 1,
        "shared": shared is not None and (shared.shape != wanted or shared.stride(1) != 1),
        "shared_gate": (shared is None) != (shared_gate is None)
        or (shared_gate is not None and shared_gate.shape != wanted[:1]),
        "residual": residual is not None and (residual.shape != wanted or residual.stride(1) != 1),
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("operands of a sum over experts do not fit", value=", ".join(wrong))
    _expert_sum_kernel[(num_tokens, triton.cdiv(size, _BLOCK))](
        rows, chosen, shares, shared, shared_gate, residual, out, size,
        0 if shared is None else shared.stride(0),
        0 if shared_gate is None else shared_gate.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        NUM_CHOSEN=num_chosen, BLOCK=_BLOCK, IS_CHAINED=is_chained,
        num_warps=4, launch_pdl=is_chained,
    )  # fmt: skip
