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

/* A weight before it is rounded to a multiple of 2^-34. */
INLINE __m256 raw_weight_of(__m256 value, __m256 top, __m256 scale) {
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

INLINE __m256 weight_of(__m256 value, __m256 top, __m256 scale) {
    const __m256 grid = _mm256_set1_ps(HG_GRID);
    __m256 w = raw_weight_of(value, top, scale);
    __m256 rounded = _mm256_sub_ps(_mm256_add_ps(w, grid), grid);
    return _mm256_blendv_ps(w, rounded, _mm256_cmp_ps(w, grid, _CMP_LT_OQ));
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

/* Weights, split and summed as lanes.h says. */
struct sum {
    __m256i high_bits, low_bits;
};

INLINE void add(struct sum *sum, __m256 weight) {
    const __m256 high_magic = _mm256_set1_ps(HG_HIGH_MAGIC);
    __m256 high = _mm256_add_ps(weight, high_magic);
    __m256 rest = _mm256_sub_ps(weight, _mm256_sub_ps(high, high_magic));
    __m256 low = _mm256_add_ps(rest, _mm256_set1_ps(HG_LOW_MAGIC));
    sum->high_bits = _mm256_add_epi32(sum->high_bits, _mm256_castps_si256(high));
    sum->low_bits = _mm256_add_epi32(sum->low_bits, _mm256_castps_si256(low));
}

INLINE uint32_t fold(__m256i v) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xee));
    return (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0x55)));
}

INLINE double total_of(struct sum sum) {
    return hg_high_total(fold(sum.high_bits)) + hg_low_total(fold(sum.low_bits));
}

static TARGET double chunk_sum(const float *chunk, float top, float scale) {
    const __m256 vtop = _mm256_set1_ps(top), vscale = _mm256_set1_ps(scale);
    struct sum sum = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t i = 0; i < HG_CHUNK; i += 8) /* rounded as part of the sum */
        add(&sum, raw_weight_of(_mm256_loadu_ps(chunk + i), vtop, vscale));
    return total_of(sum);
}

static TARGET double light_sum(const float *chunk, float top, float scale) {
    const __m256 vtop = _mm256_set1_ps(top), vscale = _mm256_set1_ps(scale);
    const __m256 magic = _mm256_set1_ps(HG_LOW_MAGIC);
    __m256i bits = _mm256_setzero_si256();
    for (size_t i = 0; i < HG_CHUNK; i += 8) {
        __m256 w = raw_weight_of(_mm256_loadu_ps(chunk + i), vtop, vscale);
        bits = _mm256_add_epi32(bits, _mm256_castps_si256(_mm256_add_ps(w, magic)));
    }
    return hg_low_total(fold(bits));
}

static TARGET double sum_ge(const float *chunk, const float *weight, float threshold) {
    const __m256 limit = _mm256_set1_ps(threshold);
    struct sum sum = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t i = 0; i < HG_CHUNK; i += 8) {
        __m256 mask = _mm256_cmp_ps(_mm256_loadu_ps(chunk + i), limit, _CMP_GE_OQ);
        add(&sum, _mm256_and_ps(mask, _mm256_loadu_ps(weight + i)));
    }
    return total_of(sum);
}

const struct hg_lanes hg_lanes_avx2 = {
    .name = "avx2",
    .scan = scan,
    .max = max_of,
    .count_ge = count_ge,
    .mask_ge = mask_ge,
    .gather = gather,
    .chunk_sum = chunk_sum,
    .light_sum = light_sum,
    .sum_ge = sum_ge,
    .weights = weights,
};
#endif
