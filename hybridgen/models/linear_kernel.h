/* Matrix product over one weight panel: up to TILE rows × 32 outputs in registers. */

#define STRIDE_DEPTH 16 /* depth steps between two groups of prefetches */

/* Both halves of the 32 weights at one depth. */
INLINE void load_weights(int dtype, const char *at, vfloat weights[2 * HALF_VECTORS])
{
    for (int i = 0; i < HALF_VECTORS; i++) {
        if (dtype == HG_BFLOAT16) {
            vuint pair;
            memcpy(&pair, at + i * sizeof pair, sizeof pair);
            weights[i] = (vfloat)(pair << 16);
            weights[HALF_VECTORS + i] = (vfloat)(pair & 0xffff0000u);
        } else {
            weights[i] = load((const float *)at + i * LANES);
            weights[HALF_VECTORS + i] = load((const float *)at + HG_HALF + i * LANES);
        }
    }
}

/* gate · sigmoid(…): of the gate itself is silu; gelu by its tanh formula, 0.5 g (1 + tanh u), is
 * g sigmoid(2u) with u = √(2/π) (g + 0.044715 g³) (Hendrycks & Gimpel 2016). */
INLINE vfloat activate(int64_t epilogue, vfloat gate)
{
    vfloat inner = gate;
    if (epilogue == HG_GEGLU)
        inner = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + exponential(-inner));
}

/* Apply bias, cap, activation and residual to the 32 sums of one row. */
static __attribute__((noinline)) void finish_row(const struct hg_linear *op, int64_t panel,
                                                 int64_t row, float sums[HG_PANEL])
{
    int width = hg_is_gated(op->epilogue) ? HG_HALF : HG_PANEL;
    int64_t first = panel * width;
    int64_t count = op->num_outputs - first < width ? op->num_outputs - first : width;
    float *y = op->y + row * op->y_stride + first;
    if (op->bias)
        for (int i = 0; i < HG_PANEL; i++)
            sums[i] += op->bias[panel * HG_PANEL + i];
    if (op->softcap > 0)
        for (int i = 0; i < HG_PANEL; i += LANES)
            store(sums + i, soft_cap(load(sums + i), (float)op->softcap));
    if (hg_is_gated(op->epilogue)) {
        for (int i = 0; i < HG_HALF; i += LANES) {
            vfloat gate = activate(op->epilogue, load(sums + i));
            store(sums + i, gate * load(sums + HG_HALF + i));
        }
    }
    if (op->epilogue == HG_ADD) {
        for (int64_t i = 0; i < count; i++)
            y[i] += sums[i];
    } else {
        memcpy(y, sums, (size_t)count * sizeof *y);
    }
}

/* `rows` and `dtype` are constants at every call, so that the sums live in registers. While it
 * multiplies, it brings num_ahead lines of the next panel into the second-level cache every
 * STRIDE_DEPTH steps. */
INLINE void multiply_rows(const int rows, const int dtype, const struct hg_linear *op,
                          int64_t panel, int64_t row, const char *ahead, int64_t num_ahead)
{
    const int64_t step_bytes = HG_PANEL * (dtype == HG_BFLOAT16 ? 2 : 4);
    const char *weight = (const char *)op->panels + panel * op->depth * step_bytes;
    const int64_t stride = op->x_stride;
    const float *x[(HG_TILE + 2) / 3];
    vfloat sums[TILE][2 * HALF_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * HALF_VECTORS; i++)
            sums[r][i] = splat(0);
    /* One pointer for three rows: with twelve there would be no registers left. */
    for (int r = 0; r < rows; r += 3)
        x[r / 3] = op->x + (row + r) * stride;
    int64_t left = op->depth;
    while (left > 0) {
        for (int64_t i = 0; i < num_ahead; i++, ahead += 64)
            __builtin_prefetch(ahead, 0, 2);
        int64_t steps = left < STRIDE_DEPTH ? left : STRIDE_DEPTH;
        left -= steps;
        for (int64_t d = 0; d < steps; d++) {
            vfloat weights[2 * HALF_VECTORS];
            load_weights(dtype, weight, weights);
            weight += step_bytes;
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                vfloat value = splat(x[r / 3][(r % 3) * stride]);
                for (int i = 0; i < 2 * HALF_VECTORS; i++)
                    sums[r][i] += value * weights[i];
            }
#pragma GCC unroll 4
            for (int r = 0; r < rows; r += 3)
                x[r / 3]++;
        }
    }
    for (int r = 0; r < rows; r++) {
        float values[HG_PANEL];
        for (int i = 0; i < 2 * HALF_VECTORS; i++)
            store(values + i * LANES, sums[r][i]);
        finish_row(op, panel, row + r, values);
    }
}

#define ROWS_CASE(n)                                                                              \
    case n:                                                                                       \
        if (n <= TILE && op->dtype == HG_BFLOAT16)                                                \
            multiply_rows(n, HG_BFLOAT16, op, panel, row, ahead, num_ahead);                      \
        else if (n <= TILE)                                                                       \
            multiply_rows(n, HG_FLOAT32, op, panel, row, ahead, num_ahead);                       \
        break;

static void multiply_tile(const struct hg_linear *op, int64_t panel, int64_t row, int64_t rows,
                          const char *ahead, int64_t num_ahead)
{
    switch (rows) {
        ROWS_CASE(1)
        ROWS_CASE(2)
        ROWS_CASE(3)
        ROWS_CASE(4)
        ROWS_CASE(5)
        ROWS_CASE(6)
        ROWS_CASE(7)
        ROWS_CASE(8)
        ROWS_CASE(9)
        ROWS_CASE(10)
        ROWS_CASE(11)
        ROWS_CASE(12)
    }
}

static void linear_panel(const struct hg_linear *op, int64_t panel, int64_t next)
{
    int64_t num_tiles = (op->num_rows + TILE - 1) / TILE;
    int64_t lines_per_step = op->dtype == HG_BFLOAT16 ? 1 : 2;
    int64_t panel_bytes = op->depth * lines_per_step * 64;
    /* The tiles share the fetching of the next panel; without one, of this panel's own end. */
    int64_t num_ahead = (STRIDE_DEPTH * lines_per_step + num_tiles - 1) / num_tiles;
    int64_t slice_bytes = num_ahead * 64 * ((op->depth + STRIDE_DEPTH - 1) / STRIDE_DEPTH);
    const char *ahead = (const char *)op->panels + next * panel_bytes;
    for (int64_t tile = 0; tile < num_tiles; tile++) {
        int64_t row = tile * op->num_rows / num_tiles;
        int64_t end = (tile + 1) * op->num_rows / num_tiles;
        int64_t offset = tile * slice_bytes;
        int is_ahead = next >= 0 && offset < panel_bytes;
        multiply_tile(op, panel, row, end - row, ahead + offset, is_ahead ? num_ahead : 0);
    }
}
