"""y = x · Wᵀ for a few tokens; the tensor memory accelerator brings tiles, dealt out evenly."""

from __future__ import annotations

import triton
import triton.language as tl

from hybridgen.models.kernels.producer import fetch_ahead, release_consumers, wait_for_producer


@triton.jit(do_not_specialize=["num_tokens", "ahead"])
def tma_dot_kernel(
    x_tiles: tl.tensor,
    weight_tiles: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    residual: tl.tensor,
    bias: tl.tensor,
    partials: tl.tensor,
    counters: tl.tensor,
    num_tokens: tl.tensor,
    num_rows: tl.tensor,
    size: tl.tensor,
    out_stride: tl.tensor,
    residual_stride: tl.tensor,
    ahead: tl.tensor,
    IS_GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_B: tl.constexpr,
    LEAD: tl.constexpr,
    IS_CHAINED: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """One program makes an equal share of the steps of all tiles, in one loop.

    ``x_tiles`` describes x [num_tokens, size] in tiles [BLOCK_B, BLOCK_K], which hold all tokens;
    ``weight_tiles`` weight [num_rows, size] (gated: [2 num_rows, size], gates first) in tiles
    [BLOCK_N, BLOCK_K]; out, residual [num_tokens, num_rows]. A step multiplies by one tile of the
    weights, and steps are counted through all columns of a tile of rows, then of the next. So the
    loads of the next tile are on their way while one ends, and all programs end together. There
    are no more programs than steps. A tile of rows that several programs share is added up by the
    program that comes last at ``counters``, in the order of the programs.

    With LEAD the next kernel may start when so many steps are left: its programs then find the
    memory idle, rather than take their first weights from it too early to be of use.
    """
    steps = tl.cdiv(size, BLOCK_K)
    num_steps = tl.cdiv(num_rows, BLOCK_N) * steps
    first = tl.program_id(0) * num_steps // tl.num_programs(0)
    last = (tl.program_id(0) + 1) * num_steps // tl.num_programs(0)
    if LEAD == 0:
        release_consumers(IS_CHAINED)
    if IS_CHAINED and ahead > 0:
        column = first % steps * BLOCK_K
        row = first // steps * BLOCK_N + tl.arange(0, BLOCK_N)
        here = tl.minimum(ahead, size - column)
        _ask_for_rows(weight, row, column, here, num_rows, size, IS_GATED, BLOCK_N)
        _ask_for_rows(weight, row + BLOCK_N, 0, ahead - here, num_rows, size, IS_GATED, BLOCK_N)
    wait_for_producer(IS_CHAINED)
    total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    up_total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    for step in range(first, last):
        row = step // steps * BLOCK_N
        column = step % steps * BLOCK_K
        w = weight_tiles.load([row, column])
        if IS_GATED:
            u = weight_tiles.load([num_rows + row, column])
        value = x_tiles.load([0, column]).T
        total = tl.dot(w, value, total, input_precision="ieee")
        if IS_GATED:
            up_total = tl.dot(u, value, up_total, input_precision="ieee")
        if LEAD > 0 and step == tl.maximum(last - LEAD, first):
            release_consumers(IS_CHAINED)
        if (column + BLOCK_K >= size) | (step == last - 1):
            tile = step // steps
            # Each way has its own end: a sum that came from either would be brought into a layout
            # that suits both, in every step.
            if (first <= tile * steps) & (last >= tile * steps + steps):
                _finish(
                    total, up_total, out, residual, bias, tile,
                    num_tokens, num_rows, out_stride, residual_stride, IS_GATED, BLOCK_N, BLOCK_B,
                )  # fmt: skip
            elif _hand_in(
                total, up_total, partials, counters, tile, steps, num_steps,
                IS_GATED, BLOCK_N, BLOCK_B, IS_COMPILED,
            ):  # fmt: skip
                sums, up_sums = _gather(
                    partials, tile, steps, num_steps, IS_GATED, BLOCK_N, BLOCK_B
                )
                _finish(
                    sums, up_sums, out, residual, bias, tile,
                    num_tokens, num_rows, out_stride, residual_stride, IS_GATED, BLOCK_N, BLOCK_B,
                )  # fmt: skip
            total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
            up_total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)


@triton.jit
def _ask_for_rows(
    weight: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    num_columns: tl.tensor,
    num_rows: tl.tensor,
    size: tl.tensor,
    IS_GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Have columns of a tile of rows brought to the L2 cache; rows that are not there are not."""
    rows = weight + tl.minimum(row, num_rows - 1).to(tl.int64) * size + column
    wanted = tl.where(row < num_rows, tl.minimum(num_columns, size), 0)[:, None]
    fetch_ahead(rows, wanted, BLOCK_N, True)
    if IS_GATED:
        fetch_ahead(rows + num_rows.to(tl.int64) * size, wanted, BLOCK_N, True)


@triton.jit
def _finish(
    total: tl.tensor,
    up_total: tl.tensor,
    out: tl.tensor,
    residual: tl.tensor,
    bias: tl.tensor,
    tile: tl.tensor,
    num_tokens: tl.tensor,
    num_rows: tl.tensor,
    out_stride: tl.tensor,
    residual_stride: tl.tensor,
    IS_GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """What follows the sums of a tile of rows, and its result."""
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.arange(0, BLOCK_B)
    is_stored = (token < num_tokens)[:, None] & (n < num_rows)[None, :]
    cell = token.to(tl.int64)[:, None], n[None, :]
    if residual is not None:
        addend = tl.load(residual + cell[0] * residual_stride + cell[1], mask=is_stored)
    if bias is not None:
        row = tl.minimum(n, num_rows - 1)
        total += tl.load(bias + row).to(tl.float32)[:, None]
        if IS_GATED:
            up_total += tl.load(bias + row + num_rows).to(tl.float32)[:, None]
    if IS_GATED:
        total = total * tl.sigmoid(total) * up_total
    result = tl.trans(total)
    if residual is not None:
        result += addend.to(tl.float32)
    result = result.to(out.dtype.element_ty)
    tl.store(out + cell[0] * out_stride + cell[1], result, mask=is_stored)


@triton.jit
def _hand_in(
    total: tl.tensor,
    up_total: tl.tensor,
    partials: tl.tensor,
    counters: tl.tensor,
    tile: tl.tensor,
    steps: tl.tensor,
    num_steps: tl.tensor,
    IS_GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Store this program's share of a tile; whether the shares of all programs are there now."""
    mine = _share(tl.program_id(0), partials, tile, steps, num_steps, IS_GATED, BLOCK_N, BLOCK_B)
    tl.store(mine, total)
    if IS_GATED:
        tl.store(mine + BLOCK_N * BLOCK_B, up_total)
    _meet(IS_COMPILED)  # all threads have stored before one of them counts
    begin, end = _sharers(tile, steps, num_steps)
    is_last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == end - begin
    if is_last:
        tl.store(counters + tile, 0)
    return is_last


@triton.jit
def _gather(
    partials: tl.tensor,
    tile: tl.tensor,
    steps: tl.tensor,
    num_steps: tl.tensor,
    IS_GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """The sums of all programs that share a tile."""
    total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    up_total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    begin, end = _sharers(tile, steps, num_steps)
    for program in range(begin, end + 1):
        share = _share(program, partials, tile, steps, num_steps, IS_GATED, BLOCK_N, BLOCK_B)
        total += tl.load(share, cache_modifier=".cg")
        if IS_GATED:
            up_total += tl.load(share + BLOCK_N * BLOCK_B, cache_modifier=".cg")
    return total, up_total


@triton.jit
def _sharers(tile: tl.tensor, steps: tl.tensor, num_steps: tl.tensor):
    """First and last program that have a step of a tile."""
    begin, end = tile * steps, tile * steps + steps - 1
    programs = tl.num_programs(0)
    return ((begin + 1) * programs - 1) // num_steps, ((end + 1) * programs - 1) // num_steps


@triton.jit
def _share(
    program: tl.tensor,
    partials: tl.tensor,
    tile: tl.tensor,
    steps: tl.tensor,
    num_steps: tl.tensor,
    IS_GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Where a program leaves its sums: it shares at most its first tile and its last."""
    AREA: tl.constexpr = BLOCK_N * BLOCK_B * (2 if IS_GATED else 1)
    first_tile = program * num_steps // tl.num_programs(0) // steps
    place = 2 * program + tl.where(first_tile == tile, 0, 1)
    cells = tl.arange(0, BLOCK_N)[:, None] * BLOCK_B + tl.arange(0, BLOCK_B)[None, :]
    return partials + place.to(tl.int64) * AREA + cells


@triton.jit
def _meet(IS_COMPILED: tl.constexpr):
    """Wait for all threads of the program; a loop with ``tl.debug_barrier`` is not pipelined."""
    if IS_COMPILED:
        tl.inline_asm_elementwise(
            "bar.sync 0; mov.b32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
