"""y = x · Wᵀ for a few tokens and INT8 weights on the matrix units, in integers."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.producer import fetch_ahead, release_consumers, wait_for_producer
from hybridgen.models.kernels.split_dot import finish, gather, load_weights


@triton.jit(do_not_specialize=["num_tokens", "ahead"])
def limb_dot_kernel(
    limbs: tl.tensor,
    limb_scales: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    residual: tl.tensor,
    bias: tl.tensor,
    partials: tl.tensor,
    counters: tl.tensor,
    num_tokens: tl.tensor,
    num_rows: tl.tensor,
    size: tl.tensor,
    out_stride: tl.tensor,
    residual_stride: tl.tensor,
    cap: tl.tensor,
    ahead: tl.tensor,
    IS_GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    IS_EVEN: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_B: tl.constexpr,
    STAGES: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    """One program makes the share of one split in BLOCK_N columns for BLOCK_B tokens.

    As ``split_dot_kernel``, but of limbs int8[2 num_tokens, size] and their limb_scales
    float32[⌈size / BLOCK_K⌉, num_tokens] (see ``split_rows``). Weights go to the matrix unit as
    they are; the sums of each BLOCK_K columns are exact, and become floats times their scale.
    """
    LIMBS: tl.constexpr = 2 * BLOCK_B
    tile = tl.program_id(0)
    split = tl.program_id(1)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(n, num_rows - 1).to(tl.int64)
    limb = tl.program_id(2) * LIMBS + tl.arange(0, LIMBS)
    is_limb = limb < 2 * num_tokens
    place = tl.where(limb % 2 == 0, 256.0, 1.0)
    share = tl.cdiv(tl.cdiv(size, BLOCK_K), SPLITS) * BLOCK_K
    begin = split * share
    end = tl.minimum(begin + share, size)
    gates = weight + row * size
    ups = gates + tl.cast(num_rows, tl.int64) * size  # a single row is no tensor
    release_consumers(IS_CHAINED)
    if IS_EVEN and ahead > 0:
        wanted = tl.minimum(ahead, end - begin)
        fetch_ahead(gates + begin, wanted, BLOCK_N, IS_CHAINED)
        if IS_GATED:
            fetch_ahead(ups + begin, wanted, BLOCK_N, IS_CHAINED)
    wait_for_producer(IS_CHAINED)
    sums = tl.zeros([BLOCK_N, LIMBS], tl.float32)
    up_sums = tl.zeros([BLOCK_N, LIMBS], tl.float32)
    limb_rows = limbs + limb.to(tl.int64) * size
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        is_inside = is_limb[None, :] if IS_EVEN else (k < size)[:, None] & is_limb[None, :]
        x = tl.load(limb_rows[None, :] + k[:, None], mask=is_inside, other=0)
        group = start // BLOCK_K * num_tokens
        scale = tl.load(limb_scales + group + limb // 2, mask=is_limb, other=0.0) * place
        w = load_weights(gates[:, None] + k[None, :], k, size, IS_EVEN)
        sums += tl.dot(w, x).to(tl.float32) * scale[None, :]
        if IS_GATED:
            u = load_weights(ups[:, None] + k[None, :], k, size, IS_EVEN)
            up_sums += tl.dot(u, x).to(tl.float32) * scale[None, :]
    total = tl.sum(tl.reshape(sums, [BLOCK_N, BLOCK_B, 2]), 2)
    up_total = tl.sum(tl.reshape(up_sums, [BLOCK_N, BLOCK_B, 2]), 2)
    token = tl.program_id(2) * BLOCK_B + tl.arange(0, BLOCK_B)
    is_stored = (token < num_tokens)[:, None] & (n < num_rows)[None, :]
    cell = token.to(tl.int64)[:, None], n[None, :]
    if residual is not None:
        addend = tl.load(residual + cell[0] * residual_stride + cell[1], mask=is_stored)
    if SPLITS > 1:
        index = tl.program_id(2) * tl.num_programs(0) + tile
        total, up_total, _, is_last = gather(
            total, up_total, tl.zeros([BLOCK_B], tl.float32), partials, counters, index, split,
            IS_GATED, False, SPLITS, BLOCK_N, BLOCK_B,
        )  # fmt: skip
        if not is_last:
            return
    total = finish(total, up_total, scales, bias, row, num_rows, cap, IS_GATED, IS_GELU)
    result = tl.trans(total)
    if residual is not None:
        result += addend.to(tl.float32)
    result = result.to(out.dtype.element_ty)
    tl.store(out + cell[0] * out_stride + cell[1], result, mask=is_stored)
