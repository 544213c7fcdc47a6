/* The loops in plain C, for every machine, and the choice among the variants. */
#include "hybridgen/sampling/lanes.h"

#include <math.h>
#include <string.h>

static inline float larger(float a, float b) { return a > b ? a : b; }

static inline float fold_max(const float lane[HG_LANES]) {
    float quad[4];
    for (int q = 0; q < 4; q++)
        quad[q] = larger(larger(lane[4 * q], lane[4 * q + 2]),
                         larger(lane[4 * q + 1], lane[4 * q + 3]));
    return larger(larger(quad[0], quad[2]), larger(quad[1], quad[3]));
}

static inline float weight_of(float value, float top, float scale) {
    float y = (value - top) * scale;
    y = y > HG_WEIGHT_FLOOR ? y : HG_WEIGHT_FLOOR;
    float shifted = y + HG_ROUND_MAGIC;
    float f = y - (shifted - HG_ROUND_MAGIC);
    float p = HG_POLY5;
    p = p * f + HG_POLY4;
    p = p * f + HG_POLY3;
    p = p * f + HG_POLY2;
    p = p * f + HG_POLY1;
    p = p * f + 1.0f;
    uint32_t power, bits;
    memcpy(&power, &shifted, sizeof power);
    memcpy(&bits, &p, sizeof bits);
    bits += power << 23;
    memcpy(&p, &bits, sizeof p);
    return p < HG_GRID ? (p + HG_GRID) - HG_GRID : p;
}

static int scan(const float *row, size_t num_chunks, float *block_max) {
    uint32_t is_bad = 0;
    for (size_t b = 0; b < num_chunks * HG_BLOCKS_PER_CHUNK; b++, row += HG_BLOCK) {
        float lane[HG_LANES];
        memcpy(lane, row, sizeof lane);
        for (size_t i = HG_LANES; i < HG_BLOCK; i += HG_LANES)
            for (size_t j = 0; j < HG_LANES; j++)
                lane[j] = larger(row[i + j], lane[j]);
        for (size_t i = 0; i < HG_BLOCK; i++)
            is_bad |= (uint32_t)(row[i] != row[i]);
        block_max[b] = fold_max(lane);
    }
    return (int)is_bad;
}

static float max_of(const float *values, size_t count) {
    float lane[HG_LANES];
    memcpy(lane, values, sizeof lane);
    for (size_t i = HG_LANES; i < count; i += HG_LANES)
        for (size_t j = 0; j < HG_LANES; j++)
            lane[j] = larger(values[i + j], lane[j]);
    return fold_max(lane);
}

static size_t count_ge(const float *values, size_t count, float threshold) {
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += (uint32_t)(values[i] >= threshold);
    return found;
}

static uint64_t mask_ge(const float *block, float threshold) {
    uint64_t mask = 0;
    for (size_t i = 0; i < HG_BLOCK; i++)
        mask |= (uint64_t)(block[i] >= threshold) << i;
    return mask;
}

static size_t gather(const float *block, int32_t first_id, float threshold, float *values,
                     int32_t *ids) {
    size_t count = 0;
    for (size_t i = 0; i < HG_BLOCK; i++) {
        values[count] = block[i];
        ids[count] = first_id + (int32_t)i;
        count += block[i] >= threshold;
    }
    return count;
}

static void weights(const float *values, size_t count, float top, float scale, float *out) {
    for (size_t i = 0; i < count; i++)
        out[i] = weight_of(values[i], top, scale);
}

static double add_up(const float w[HG_CHUNK]) {
    double lane[HG_LANES] = {0.0}, sum = 0.0;
    for (size_t i = 0; i < HG_CHUNK; i += HG_LANES)
        for (size_t j = 0; j < HG_LANES; j++)
            lane[j] += (double)w[i + j];
    for (size_t j = 0; j < HG_LANES; j++)
        sum += lane[j];
    return sum;
}

static double chunk_sum(const float *chunk, float top, float scale) {
    float w[HG_CHUNK];
    weights(chunk, HG_CHUNK, top, scale, w);
    return add_up(w);
}

static double sum_ge(const float *chunk, const float *weight, float threshold) {
    float w[HG_CHUNK];
    for (size_t i = 0; i < HG_CHUNK; i++)
        w[i] = chunk[i] >= threshold ? weight[i] : 0.0f;
    return add_up(w);
}

const struct hg_lanes hg_lanes_generic = {
    .name = "generic",
    .scan = scan,
    .max = max_of,
    .count_ge = count_ge,
    .mask_ge = mask_ge,
    .gather = gather,
    .chunk_sum = chunk_sum,
    .light_sum = chunk_sum,
    .sum_ge = sum_ge,
    .weights = weights,
};

size_t hg_lanes_usable(const struct hg_lanes *out[HG_MAX_VARIANTS]) {
    size_t count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        out[count++] = &hg_lanes_avx512;
    if (__builtin_cpu_supports("avx2"))
        out[count++] = &hg_lanes_avx2;
#endif
    out[count++] = &hg_lanes_generic;
    return count;
}
