/* Attention of one tile of query rows over the paged KV cache of one kv head.
 *
 * The rows of a tile are the query heads that share the kv head, of one or several consecutive
 * tokens: they share every load of K and V. Each row sums over positions in order, whatever the
 * tile: a query's result does not depend on how its prompt was cut into chunks.
 *
 * Positions of a tile count from the start of the first block that one of its rows sees, so that
 * a window costs only its blocks, and those before it are not touched. */

#define BLOCK_GROUP 8 /* blocks whose values are swept together: they stay in the nearest cache */

struct query_tile {
    const struct hg_attention *op;
    const int32_t *table; /* blocks from the tile's first on */
    int64_t kv_head;
    int64_t num_positions; /* from the tile's first to its last row's */
    int64_t stride;        /* of scores */
    float *queries;        /* [row][head_dim], scaled */
    float *scores;         /* [row][stride]; later weights */
    float *out[TILE];
    int64_t begin[TILE]; /* first position that the row sees */
    int64_t limit[TILE]; /* behind the last one */
};

INLINE int64_t block_base(const struct query_tile *tile, int64_t index)
{
    const struct hg_attention *op = tile->op;
    return (tile->table[index] * op->num_kv_heads + tile->kv_head) * op->head_dim * HG_BLOCK;
}

/* scores[r][p] = Σ_d q[r, d] k[p, d], 16 positions at a time. */
INLINE void score_rows(const int rows, const int dtype, const struct query_tile *tile)
{
    const int64_t dim = tile->op->head_dim;
    const float cap = (float)tile->op->softcap;
    const int item_bytes = dtype == HG_BFLOAT16 ? 2 : 4;
    int64_t num_blocks = (tile->num_positions + HG_BLOCK - 1) / HG_BLOCK;
    for (int64_t block = 0; block < num_blocks; block++) {
        const char *keys = (const char *)tile->op->keys + block_base(tile, block) * item_bytes;
        int64_t next = block + 1 < num_blocks ? block + 1 : block;
        const char *ahead = (const char *)tile->op->keys + block_base(tile, next) * item_bytes;
        vfloat sums[TILE][HALF_VECTORS];
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < HALF_VECTORS; i++)
                sums[r][i] = splat(0);
        for (int64_t d = 0; d < dim; d++) {
            __builtin_prefetch(ahead + d * HG_BLOCK * item_bytes, 0, 3);
            for (int i = 0; i < HALF_VECTORS; i++) {
                vfloat key = load_as(dtype, keys, d * HG_BLOCK + i * LANES);
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++)
                    sums[r][i] += key * tile->queries[r * dim + d];
            }
        }
        if (cap > 0)
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < HALF_VECTORS; i++)
                    sums[r][i] = soft_cap(sums[r][i], cap);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < HALF_VECTORS; i++)
                store(tile->scores + r * tile->stride + block * HG_BLOCK + i * LANES, sums[r][i]);
    }
}

/* out[r][…] += Σ_p weight[r, p] v[p, …] over some positions, `halves` × 16 dimensions. */
INLINE void weigh_rows(const int rows, const int dtype, const int halves,
                       const struct query_tile *tile, int64_t column, int64_t first, int64_t end)
{
    const int vectors = halves * HALF_VECTORS;
    const int64_t dim = tile->op->head_dim;
    const int64_t stride = tile->stride;
    vfloat sums[TILE][2 * HALF_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++)
            sums[r][i] = load(tile->out[r] + column + i * LANES);
    for (int64_t start = first; start < end; start += HG_BLOCK) {
        int64_t base = block_base(tile, start / HG_BLOCK) + column;
        int64_t stop = end - start < HG_BLOCK ? end - start : HG_BLOCK;
        for (int64_t p = 0; p < stop; p++) {
            vfloat value[2 * HALF_VECTORS];
            for (int i = 0; i < vectors; i++)
                value[i] = load_as(dtype, tile->op->values, base + p * dim + i * LANES);
            const float *weight = tile->scores + start + p;
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < vectors; i++)
                    sums[r][i] += value[i] * weight[r * stride];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++)
            store(tile->out[r] + column + i * LANES, sums[r][i]);
}

/* Scores of one row → exp(score − max), zero outside what it sees; returns 1 / sum. */
static float soften_row(float *scores, int64_t begin, int64_t limit, int64_t length)
{
    for (int64_t p = 0; p < begin; p++)
        scores[p] = -INFINITY;
    for (int64_t p = limit; p < length; p++)
        scores[p] = -INFINITY;
    vfloat maxima = splat(-INFINITY);
    for (int64_t p = 0; p < length; p += LANES)
        maxima = maximum(load(scores + p), maxima);
    vfloat largest = splat(max_lanes(maxima));
    vfloat sums = splat(0);
    for (int64_t p = 0; p < length; p += LANES) {
        vfloat score = load(scores + p);
        vfloat weight = exponential(score - largest); /* never quite 0 */
        weight = select_lanes(score == -INFINITY, splat(0), weight);
        store(scores + p, weight);
        sums += weight;
    }
    return 1.0f / sum_lanes(sums);
}

INLINE void attend_rows(const int rows, const int dtype, const struct query_tile *tile)
{
    const int64_t dim = tile->op->head_dim;
    const int64_t group = BLOCK_GROUP * HG_BLOCK;
    const int64_t length = (tile->num_positions + HG_BLOCK - 1) / HG_BLOCK * HG_BLOCK;
    float scale[TILE];
    score_rows(rows, dtype, tile);
    for (int r = 0; r < rows; r++) {
        scale[r] = soften_row(tile->scores + r * tile->stride, tile->begin[r], tile->limit[r],
                              length);
        memset(tile->out[r], 0, (size_t)dim * sizeof(float));
    }
    for (int64_t first = 0; first < tile->num_positions; first += group) {
        int64_t rest = tile->num_positions - first;
        int64_t end = first + (rest < group ? rest : group);
        int64_t column = 0;
        for (; column + 2 * HG_HALF <= dim; column += 2 * HG_HALF)
            weigh_rows(rows, dtype, 2, tile, column, first, end);
        if (column < dim)
            weigh_rows(rows, dtype, 1, tile, column, first, end);
    }
    for (int r = 0; r < rows; r++)
        for (int64_t d = 0; d < dim; d++)
            tile->out[r][d] *= scale[r];
}

/* First position that a token sees. */
static int64_t window_start(const struct hg_attention *op, int64_t token)
{
    int64_t start = op->positions[token] + 1 - op->window;
    return op->window && start > 0 ? start : 0;
}

#define ATTEND_CASE(n)                                                                            \
    case n:                                                                                       \
        if (n <= TILE && op->dtype == HG_BFLOAT16)                                                \
            attend_rows(n, HG_BFLOAT16, &tile);                                                   \
        else if (n <= TILE)                                                                       \
            attend_rows(n, HG_FLOAT32, &tile);                                                    \
        break;

static void attend_tile(const struct hg_attention *op, int64_t item, float *scratch)
{
    int64_t group = op->num_heads / op->num_kv_heads;
    int64_t num_rows = op->tokens_per_sequence * group;
    int64_t num_tiles = (num_rows + TILE - 1) / TILE;
    int64_t sequence = item / (num_tiles * op->num_kv_heads);
    int64_t kv_head = item / num_tiles % op->num_kv_heads;
    /* Late tokens see most positions: the longest work comes first. */
    int64_t first = (num_tiles - 1 - item % num_tiles) * TILE;
    int64_t rows = num_rows - first < TILE ? num_rows - first : TILE;
    /* Positions rise: the first row sees the furthest back. */
    int64_t start = window_start(op, sequence * op->tokens_per_sequence + first / group);
    int64_t first_block = start / HG_BLOCK;
    struct query_tile tile = {
        .op = op,
        .table = op->tables + sequence * op->table_stride + first_block,
        .kv_head = kv_head,
        .queries = scratch,
        .scores = scratch + TILE * op->head_dim,
    };
    for (int64_t r = 0; r < rows; r++) {
        int64_t token = sequence * op->tokens_per_sequence + (first + r) / group;
        int64_t column = (kv_head * group + (first + r) % group) * op->head_dim;
        const float *query = op->qkv + token * op->qkv_stride + column;
        for (int64_t d = 0; d < op->head_dim; d++)
            tile.queries[r * op->head_dim + d] = query[d] * (float)op->scale;
        tile.out[r] = op->out + token * op->out_stride + column;
        tile.begin[r] = window_start(op, token) - first_block * HG_BLOCK;
        tile.limit[r] = op->positions[token] + 1 - first_block * HG_BLOCK;
        tile.num_positions = tile.limit[r]; /* the last row's is the largest */
    }
    /* Rows a whole number of pages apart would share cache sets; the extra 16 floats avoid it. */
    tile.stride = (tile.num_positions + HG_BLOCK - 1) / HG_BLOCK * HG_BLOCK + HG_HALF;
    switch (rows) {
        ATTEND_CASE(1)
        ATTEND_CASE(2)
        ATTEND_CASE(3)
        ATTEND_CASE(4)
        ATTEND_CASE(5)
        ATTEND_CASE(6)
        ATTEND_CASE(7)
        ATTEND_CASE(8)
        ATTEND_CASE(9)
        ATTEND_CASE(10)
        ATTEND_CASE(11)
        ATTEND_CASE(12)
    }
}
