/* The loops with 256-bit registers, two to a vector; see lanes.h for what they must compute. */
#include "hybridgen/sampling/lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline)) TARGET
#define PREFETCH_AHEAD (16 * HG_BLOCK) /* floats; hides page boundaries of rows in far memory */

/* Lanes 0-7 and 8-15 of one vector. */
struct vec {
    __m256 low, high;
};

INLINE struct vec load(const float *values) {
    return (struct vec){_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
}

INLINE struct vec max2(struct vec a, struct vec b) {
    return (struct vec){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

INLINE struct vec add2(struct vec a, struct vec b) {
    return (struct vec){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

/* Fold four half vectors at once down to one value per quad of lanes. */
INLINE __m256 quads4_max(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 ab = _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    __m256 cd = _mm256_max_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    return _mm256_max_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
}

INLINE __m128 fold4_max(struct vec a, struct vec b, struct vec c, struct vec d) {
    __m256 pair = _mm256_max_ps(quads4_max(a.low, b.low, c.low, d.low),
                                quads4_max(a.high, b.high, c.high, d.high));
    return _mm_max_ps(_mm256_castps256_ps128(pair), _mm256_extractf128_ps(pair, 1));
}

INLINE __m256 quads_sum(__m256 v) {
    __m256 halves = _mm256_add_ps(v, _mm256_shuffle_ps(v, v, 0xee));
    return _mm256_add_ps(halves, _mm256_shuffle_ps(halves, halves, 0x55));
}

INLINE float fold_sum(struct vec v) {
    __m256 pair = _mm256_add_ps(quads_sum(v.low), quads_sum(v.high));
    return _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(pair), _mm256_extractf128_ps(pair, 1)));
}

INLINE __m256 weight_of(__m256 value, __m256 top, __m256 scale) {
    const __m256 magic = _mm256_set1_ps(HG_ROUND_MAGIC);
    __m256 y = _mm256_mul_ps(_mm256_sub_ps(value, top), scale);
    y = _mm256_max_ps(y, _mm256_set1_ps(HG_WEIGHT_FLOOR));
    __m256 shifted = _mm256_add_ps(y, magic);
    __m256 f = _mm256_sub_ps(y, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_set1_ps(HG_POLY5);
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(HG_POLY4));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(HG_POLY3));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(HG_POLY2));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(HG_POLY1));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
}

INLINE struct vec weights_of(const float *values, __m256 top, __m256 scale) {
    struct vec v = load(values);
    return (struct vec){weight_of(v.low, top, scale), weight_of(v.high, top, scale)};
}

INLINE struct vec block_of(const float *block, __m256 *is_nan) {
    for (int i = 0; i < 64; i += 16)
        _mm_prefetch((const char *)(block + PREFETCH_AHEAD + i), _MM_HINT_T0);
    struct vec a = load(block), b = load(block + 16), c = load(block + 32), d = load(block + 48);
    __m256 low = _mm256_or_ps(_mm256_cmp_ps(a.low, b.low, _CMP_UNORD_Q),
                              _mm256_cmp_ps(c.low, d.low, _CMP_UNORD_Q));
    __m256 high = _mm256_or_ps(_mm256_cmp_ps(a.high, b.high, _CMP_UNORD_Q),
                               _mm256_cmp_ps(c.high, d.high, _CMP_UNORD_Q));
    *is_nan = _mm256_or_ps(*is_nan, _mm256_or_ps(low, high));
    return max2(max2(a, b), max2(c, d));
}

static TARGET int scan(const float *row, size_t num_chunks, float *block_max) {
    __m256 is_nan = _mm256_setzero_ps();
    for (size_t c = 0; c < num_chunks; c++, row += HG_CHUNK, block_max += HG_BLOCKS_PER_CHUNK) {
        struct vec m0 = block_of(row, &is_nan), m1 = block_of(row + 64, &is_nan);
        struct vec m2 = block_of(row + 128, &is_nan), m3 = block_of(row + 192, &is_nan);
        _mm_storeu_ps(block_max, fold4_max(m0, m1, m2, m3));
    }
    return _mm256_movemask_ps(is_nan) != 0;
}

static TARGET float max_of(const float *values, size_t count) {
    struct vec most = load(values);
    for (size_t i = 16; i < count; i += 16)
        most = max2(most, load(values + i));
    return _mm_cvtss_f32(fold4_max(most, most, most, most));
}

static TARGET size_t count_ge(const float *values, size_t count, float threshold) {
    const __m256 limit = _mm256_set1_ps(threshold);
    __m256i found = _mm256_setzero_si256();
    for (size_t i = 0; i < count; i += 8)
        found = _mm256_sub_epi32(found, _mm256_castps_si256(_mm256_cmp_ps(
                                            _mm256_loadu_ps(values + i), limit, _CMP_GE_OQ)));
    uint32_t lane[8], sum = 0;
    _mm256_storeu_si256((__m256i *)lane, found);
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return sum;
}

static TARGET uint64_t mask_ge(const float *block, float threshold) {
    const __m256 limit = _mm256_set1_ps(threshold);
    uint64_t mask = 0;
    for (int i = 0; i < 8; i++)
        mask |= (uint64_t)(uint32_t)_mm256_movemask_ps(
                    _mm256_cmp_ps(_mm256_loadu_ps(block + 8 * i), limit, _CMP_GE_OQ))
                << (8 * i);
    return mask;
}

static TARGET size_t gather(const float *block, int32_t first_id, float threshold, float *values,
                            int32_t *ids) {
    size_t count = 0;
    for (uint64_t mask = mask_ge(block, threshold); mask; mask &= mask - 1) {
        int bit = __builtin_ctzll(mask);
        values[count] = block[bit];
        ids[count++] = first_id + bit;
    }
    return count;
}

static TARGET void weights(const float *values, size_t count, float top, float scale, float *out) {
    const __m256 vtop = _mm256_set1_ps(top), vscale = _mm256_set1_ps(scale);
    for (size_t i = 0; i < count; i += 8)
        _mm256_storeu_ps(out + i, weight_of(_mm256_loadu_ps(values + i), vtop, vscale));
}

INLINE struct vec sum4(const float *values, __m256 top, __m256 scale) {
    struct vec a = weights_of(values, top, scale), b = weights_of(values + 16, top, scale);
    struct vec c = weights_of(values + 32, top, scale), d = weights_of(values + 48, top, scale);
    return add2(add2(a, b), add2(c, d));
}

static TARGET float chunk_sum(const float *chunk, float top, float scale) {
    const __m256 vtop = _mm256_set1_ps(top), vscale = _mm256_set1_ps(scale);
    struct vec a = sum4(chunk, vtop, vscale), b = sum4(chunk + 64, vtop, vscale);
    struct vec c = sum4(chunk + 128, vtop, vscale), d = sum4(chunk + 192, vtop, vscale);
    return fold_sum(add2(add2(a, b), add2(c, d)));
}

INLINE __m256 reaching(const float *values, const float *weight, __m256 limit) {
    __m256 mask = _mm256_cmp_ps(_mm256_loadu_ps(values), limit, _CMP_GE_OQ);
    return _mm256_and_ps(mask, _mm256_loadu_ps(weight));
}

INLINE struct vec reaching2(const float *values, const float *weight, __m256 limit) {
    return (struct vec){reaching(values, weight, limit), reaching(values + 8, weight + 8, limit)};
}

INLINE struct vec sum4_ge(const float *values, const float *weight, __m256 limit) {
    struct vec a = reaching2(values, weight, limit);
    struct vec b = reaching2(values + 16, weight + 16, limit);
    struct vec c = reaching2(values + 32, weight + 32, limit);
    struct vec d = reaching2(values + 48, weight + 48, limit);
    return add2(add2(a, b), add2(c, d));
}

static TARGET float sum_ge(const float *chunk, const float *weight, float threshold) {
    const __m256 limit = _mm256_set1_ps(threshold);
    struct vec a = sum4_ge(chunk, weight, limit), b = sum4_ge(chunk + 64, weight + 64, limit);
    struct vec c = sum4_ge(chunk + 128, weight + 128, limit);
    struct vec d = sum4_ge(chunk + 192, weight + 192, limit);
    return fold_sum(add2(add2(a, b), add2(c, d)));
}

const struct hg_lanes hg_lanes_avx2 = {
    .name = "avx2",
    .scan = scan,
    .max = max_of,
    .count_ge = count_ge,
    .mask_ge = mask_ge,
    .gather = gather,
    .chunk_sum = chunk_sum,
    .sum_ge = sum_ge,
    .weights = weights,
};
#endif
