"""Which experts a token takes and with what shares, from the logits of the router."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hybridgen.errors import InternalError
from hybridgen.models.kernels.producer import release_consumers, wait_for_producer


@triton.jit
def _choose_experts_kernel(
    logits: tl.tensor,
    positions: tl.tensor,
    chosen: tl.tensor,
    shares: tl.tensor,
    logits_stride: tl.tensor,
    NUM_EXPERTS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_C: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    """One program chooses for one token, expert after expert."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK_E)
    rank = tl.arange(0, BLOCK_C)
    release_consumers(IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    row = logits + token * logits_stride
    left = tl.load(row + expert, mask=expert < NUM_EXPERTS, other=float("-inf"))
    top = tl.max(left, 0)
    total = tl.sum(tl.exp(left - top), 0)
    indices = tl.zeros([BLOCK_C], tl.int32)
    values = tl.zeros([BLOCK_C], tl.float32)
    for turn in range(NUM_CHOSEN):
        best = tl.max(left, 0)
        # Where nothing is equal, logits are not numbers: any index will do, if there is such.
        index = tl.min(tl.where(left == best, expert, NUM_EXPERTS - 1), 0)
        indices = tl.where(rank == turn, index, indices)
        values = tl.where(rank == turn, tl.exp(best - top) / total, values)
        left = tl.where(expert == index, float("-inf"), left)
    if IS_NORMALIZED:
        values /= tl.sum(values, 0)
    if positions is not None:  # noqa: SIM102  known when compiled, unlike what stands there
        if tl.load(positions + token) < 0:
            indices = tl.full([BLOCK_C], -1, tl.int32)
    at = token * NUM_CHOSEN + rank
    tl.store(chosen + at, indices, mask=rank < NUM_CHOSEN)
    tl.store(shares + at, values, mask=rank < NUM_CHOSEN)


def choose_experts(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    *,
    num_experts: int,
    is_normalized: bool,
    positions: torch.Tensor | None = None,
    is_chained: bool = False,
) -> None:
    """The greatest shares of a softmax over all experts, of equal ones the first; in float32.

    Reads num_tokens · num_experts logits, writes num_tokens · num_chosen shares and numbers.

    Args:
        logits: float32[num_tokens, num_experts or more], what is more is not looked at.
        chosen: int32[num_tokens, num_chosen], greatest share first; -1 for idle rows.
        shares: float32[num_tokens, num_chosen].
        num_experts: of the layer.
        is_normalized: chosen shares are divided by their sum.
        positions: int32[num_tokens], below 0 for idle rows; None: there are none.
        is_chained: start while the kernel before still runs (see ``producer``).

    Raises:
        InternalError: operands do not fit.
    """
    num_tokens, num_chosen = chosen.shape
    problems = {
        "logits": logits.dtype != torch.float32
        or len(logits) != num_tokens
        or logits.shape[1] < num_experts
        or logits.stride(1) != 1,
        "chosen": chosen.dtype != torch.int32
        or not chosen.is_contiguous()
        or num_chosen > num_experts,
        "shares": shares.dtype != torch.float32
        or shares.shape != chosen.shape
        or not shares.is_contiguous(),
        "positions": positions is not None and positions.shape != (num_tokens,),
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise InternalError("operands of a choice of experts do not fit", value=", ".join(wrong))
    block = triton.next_power_of_2(num_experts)
    _choose_experts_kernel[(num_tokens,)](
        logits, positions, chosen, shares, logits.stride(0),
        NUM_EXPERTS=num_experts, NUM_CHOSEN=num_chosen, IS_NORMALIZED=is_normalized,
        BLOCK_E=block, BLOCK_C=triton.next_power_of_2(num_chosen),
        IS_CHAINED=is_chained, num_warps=1 if block <= 256 else 4, launch_pdl=is_chained,
    )  # fmt: skip
