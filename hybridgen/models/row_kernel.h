/* RMSNorm of one row; norms, rotation and KV store of one token. */

/* What a row is multiplied with, its norm's weight apart. */
INLINE float norm_scale(const float *x, int64_t size, double epsilon)
{
    int64_t vector_end = size / LANES * LANES;
    vfloat squares = splat(0);
    for (int64_t i = 0; i < vector_end; i += LANES) {
        vfloat v = load(x + i);
        squares += v * v;
    }
    float sum = sum_lanes(squares);
    for (int64_t i = vector_end; i < size; i++)
        sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)size + (float)epsilon);
}

static void norm_row(const struct hg_norm *op, int64_t row)
{
    const float *x = op->x + row * op->x_stride;
    float *y = op->y + row * op->y_stride;
    float scale = norm_scale(x, op->size, op->epsilon);
    if (op->is_added)
        for (int64_t i = 0; i < op->size; i++)
            y[i] += x[i] * scale * op->weight[i];
    else
        for (int64_t i = 0; i < op->size; i++)
            y[i] = x[i] * scale * op->weight[i];
}

INLINE void norm_head(float *head, const float *weight, int64_t size, double epsilon)
{
    float scale = norm_scale(head, size, epsilon);
    for (int64_t i = 0; i < size; i++)
        head[i] = head[i] * scale * weight[i];
}

/* (a, b) → (a cos − b sin, b cos + a sin) for the two halves of what is rotated of a head. */
INLINE void rotate_head(float *head, const float *cosines, const float *sines, int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[half + i];
        head[i] = a * cosines[i] - b * sines[i];
        head[half + i] = b * cosines[i] + a * sines[i];
    }
}

INLINE void store_token(const int dtype, const struct hg_attention *op, const float *keys,
                        int64_t block, int64_t offset)
{
    const int64_t dim = op->head_dim;
    const float *values = keys + op->num_kv_heads * dim;
    for (int64_t head = 0; head < op->num_kv_heads; head++) {
        int64_t base = (block * op->num_kv_heads + head) * dim * HG_BLOCK;
        for (int64_t d = 0; d < dim; d++) {
            store_as(dtype, op->keys, base + d * HG_BLOCK + offset, keys[head * dim + d]);
            store_as(dtype, op->values, base + offset * dim + d, values[head * dim + d]);
        }
    }
}

static void rotate_token(const struct hg_attention *op, int64_t token)
{
    int64_t position = op->positions[token];
    int64_t sequence = token / op->tokens_per_sequence;
    int64_t block = op->tables[sequence * op->table_stride + position / HG_BLOCK];
    int64_t half = op->rotary_size / 2;
    float *row = op->qkv + token * op->qkv_stride;
    for (int64_t i = 0; i < op->num_heads + op->num_kv_heads; i++) {
        float *head = row + i * op->head_dim;
        if (op->q_norm)
            norm_head(head, i < op->num_heads ? op->q_norm : op->k_norm, op->head_dim,
                      op->epsilon);
        rotate_head(head, op->cosines + position * half, op->sines + position * half, half);
    }
    const float *keys = row + op->num_heads * op->head_dim;
    if (op->dtype == HG_BFLOAT16)
        store_token(HG_BFLOAT16, op, keys, block, position % HG_BLOCK);
    else
        store_token(HG_FLOAT32, op, keys, block, position % HG_BLOCK);
}
