/* Phases: how each operation is divided over the threads of a pool. */
#include "hybridgen/models/ops.h"

#include <stddef.h>
#include <string.h>

static const struct hg_kernels *kernels;

const struct hg_kernels *hg_select_kernels(const char *name)
{
    const struct hg_kernels *found[3];
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        found[count++] = &hg_kernels_avx512;
    if (has_avx2)
        found[count++] = &hg_kernels_avx2;
#endif
    found[count++] = &hg_kernels_baseline;
    for (int i = 0; i < count; i++)
        if (!name || !strcmp(name, found[i]->name))
            return kernels = found[i];
    return NULL;
}

#define ELEMENT(name, size, bytes) {#name, size, bytes},
const struct hg_element hg_elements[] = {HG_ELEMENTS(ELEMENT)};

float hg_convert(const struct hg_conversion *op)
{
    return kernels->convert(op);
}

/* 16 rows of the source, or fewer at its end, as one half of a panel. */
struct half {
    const char *rows;
    int64_t count;
};

static struct half half_at(const void *source, int64_t row, const struct hg_pack *op)
{
    int64_t left = op->num_outputs - row;
    int64_t row_bytes = op->depth * (op->dtype == HG_BFLOAT16 ? 2 : 4);
    struct half half = {(const char *)source + row * row_bytes, left < 0 ? 0 : left};
    if (half.count > HG_HALF)
        half.count = HG_HALF;
    return half;
}

static void pack_bfloat16(uint32_t *panel, struct half low, struct half high, int64_t depth)
{
    const uint16_t *a = (const uint16_t *)low.rows, *b = (const uint16_t *)high.rows;
    const int64_t step = 32; /* the 2 KiB being written stay in the nearest cache */
    for (int64_t first = 0; first < depth; first += step) {
        int64_t end = depth - first < step ? depth : first + step;
        for (int64_t j = 0; j < HG_HALF; j++)
            for (int64_t d = first; d < end; d++) {
                uint32_t lower = j < low.count ? a[j * depth + d] : 0;
                uint32_t upper = j < high.count ? b[j * depth + d] : 0;
                panel[d * HG_HALF + j] = lower | upper << 16;
            }
    }
}

static void pack_float32(float *panel, struct half low, struct half high, int64_t depth)
{
    const float *a = (const float *)low.rows, *b = (const float *)high.rows;
    const int64_t step = 16;
    for (int64_t first = 0; first < depth; first += step) {
        int64_t end = depth - first < step ? depth : first + step;
        for (int64_t j = 0; j < HG_HALF; j++)
            for (int64_t d = first; d < end; d++) {
                panel[d * HG_PANEL + j] = j < low.count ? a[j * depth + d] : 0;
                panel[d * HG_PANEL + HG_HALF + j] = j < high.count ? b[j * depth + d] : 0;
            }
    }
}

void hg_pack_phase(struct hg_pool *pool, const struct hg_pack *op)
{
    int64_t width = op->is_paired ? HG_HALF : HG_PANEL;
    int64_t num_panels = (op->num_outputs + width - 1) / width;
    for (int64_t panel; (panel = hg_claim(pool)) < num_panels;) {
        struct half low = half_at(op->first, panel * width, op);
        struct half high = op->is_paired ? half_at(op->second, panel * width, op)
                                         : half_at(op->first, panel * width + HG_HALF, op);
        int64_t at = panel * op->depth;
        if (op->dtype == HG_BFLOAT16)
            pack_bfloat16((uint32_t *)op->panels + at * HG_HALF, low, high, op->depth);
        else
            pack_float32((float *)op->panels + at * HG_PANEL, low, high, op->depth);
    }
}

void hg_gather_phase(struct hg_pool *pool, const struct hg_gather *op)
{
    for (int64_t row; (row = hg_claim(pool)) < op->num_rows;) {
        int64_t panel = op->ids[row] / HG_PANEL, lane = op->ids[row] % HG_PANEL;
        float *y = op->y + row * op->y_stride, scale = (float)op->scale;
        if (op->dtype == HG_BFLOAT16) {
            const uint32_t *words = (const uint32_t *)op->panels + panel * op->depth * HG_HALF;
            for (int64_t d = 0; d < op->depth; d++) {
                uint32_t word = words[d * HG_HALF + lane % HG_HALF];
                uint32_t bits = lane < HG_HALF ? word << 16 : word & 0xffff0000u;
                memcpy(y + d, &bits, sizeof bits);
                y[d] *= scale;
            }
        } else {
            const float *words = (const float *)op->panels + panel * op->depth * HG_PANEL;
            for (int64_t d = 0; d < op->depth; d++)
                y[d] = words[d * HG_PANEL + lane] * scale;
        }
    }
}

void hg_linear_panel(const struct hg_linear *op, int64_t panel, int64_t next)
{
    kernels->linear_panel(op, panel, next);
}

void hg_linear_phase(struct hg_pool *pool, const struct hg_linear *op)
{
    int64_t width = hg_is_gated(op->epilogue) ? HG_HALF : HG_PANEL;
    int64_t num_panels = (op->num_outputs + width - 1) / width;
    int64_t panel = hg_claim(pool);
    /* The next panel is claimed before this one is computed, so that it can be fetched. */
    while (panel < num_panels) {
        int64_t next = hg_claim(pool);
        kernels->linear_panel(op, panel, next < num_panels ? next : -1);
        panel = next;
    }
}

void hg_norm_phase(struct hg_pool *pool, const struct hg_norm *op)
{
    for (int64_t row; (row = hg_claim(pool)) < op->num_rows;)
        kernels->norm_row(op, row);
}

void hg_rotate_phase(struct hg_pool *pool, const struct hg_attention *op)
{
    for (int64_t token; (token = hg_claim(pool)) < op->num_tokens;)
        kernels->rotate_token(op, token);
}

void hg_attend_phase(struct hg_pool *pool, int thread, const struct hg_attention *op)
{
    int64_t rows = op->num_heads / op->num_kv_heads * op->tokens_per_sequence;
    int64_t num_tiles = (rows + kernels->tile - 1) / kernels->tile;
    int64_t num_sequences = op->num_tokens / op->tokens_per_sequence;
    int64_t num_items = num_sequences * op->num_kv_heads * num_tiles;
    for (int64_t item; (item = hg_claim(pool)) < num_items;)
        kernels->attend_tile(op, item, op->scratch + thread * op->scratch_stride);
}
