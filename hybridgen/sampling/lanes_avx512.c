/* The loops with 512-bit registers; see lanes.h for what they must compute. */
#include "hybridgen/sampling/lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define INLINE static inline __attribute__((always_inline)) TARGET
#define PREFETCH_AHEAD (16 * HG_BLOCK) /* floats; hides page boundaries of rows in far memory */

/* Fold four vectors at once; lane k of the result belongs to vector k. */
INLINE __m128 fold4_max(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 quads = _mm512_max_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    __m256 pair = _mm256_max_ps(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));
    return _mm_max_ps(_mm256_castps256_ps128(pair), _mm256_extractf128_ps(pair, 1));
}

/* A weight before it is rounded to a multiple of 2^-34. */
INLINE __m512 raw_weight_of(__m512 value, __m512 top, __m512 scale) {
    const __m512 magic = _mm512_set1_ps(HG_ROUND_MAGIC);
    __m512 y = _mm512_mul_ps(_mm512_sub_ps(value, top), scale);
    y = _mm512_max_ps(y, _mm512_set1_ps(HG_WEIGHT_FLOOR));
    __m512 shifted = _mm512_add_ps(y, magic);
    __m512 f = _mm512_sub_ps(y, _mm512_sub_ps(shifted, magic));
    __m512 p = _mm512_set1_ps(HG_POLY5);
    p = _mm512_add_ps(_mm512_mul_ps(p, f), _mm512_set1_ps(HG_POLY4));
    p = _mm512_add_ps(_mm512_mul_ps(p, f), _mm512_set1_ps(HG_POLY3));
    p = _mm512_add_ps(_mm512_mul_ps(p, f), _mm512_set1_ps(HG_POLY2));
    p = _mm512_add_ps(_mm512_mul_ps(p, f), _mm512_set1_ps(HG_POLY1));
    p = _mm512_add_ps(_mm512_mul_ps(p, f), _mm512_set1_ps(1.0f));
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
}

INLINE __m512 block_of(const float *block, __mmask16 *is_nan) {
    _mm_prefetch((const char *)(block + PREFETCH_AHEAD), _MM_HINT_T0);
    _mm_prefetch((const char *)(block + PREFETCH_AHEAD + 16), _MM_HINT_T0);
    _mm_prefetch((const char *)(block + PREFETCH_AHEAD + 32), _MM_HINT_T0);
    _mm_prefetch((const char *)(block + PREFETCH_AHEAD + 48), _MM_HINT_T0);
    __m512 a = _mm512_loadu_ps(block), b = _mm512_loadu_ps(block + 16);
    __m512 c = _mm512_loadu_ps(block + 32), d = _mm512_loadu_ps(block + 48);
    *is_nan |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(c, d, _CMP_UNORD_Q);
    return _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
}

static TARGET int scan(const float *row, size_t num_chunks, float *block_max) {
    __mmask16 is_nan = 0;
    for (size_t c = 0; c < num_chunks; c++, row += HG_CHUNK, block_max += HG_BLOCKS_PER_CHUNK) {
        __m512 m0 = block_of(row, &is_nan), m1 = block_of(row + 64, &is_nan);
        __m512 m2 = block_of(row + 128, &is_nan), m3 = block_of(row + 192, &is_nan);
        _mm_storeu_ps(block_max, fold4_max(m0, m1, m2, m3));
    }
    return is_nan != 0;
}

static TARGET float max_of(const float *values, size_t count) {
    __m512 most = _mm512_loadu_ps(values);
    for (size_t i = 16; i < count; i += 16)
        most = _mm512_max_ps(most, _mm512_loadu_ps(values + i));
    return _mm_cvtss_f32(fold4_max(most, most, most, most));
}

static TARGET size_t count_ge(const float *values, size_t count, float threshold) {
    const __m512 limit = _mm512_set1_ps(threshold);
    __m512i found = _mm512_setzero_si512();
    for (size_t i = 0; i < count; i += 16) {
        __mmask16 mask = _mm512_cmp_ps_mask(_mm512_loadu_ps(values + i), limit, _CMP_GE_OQ);
        found = _mm512_sub_epi32(found, _mm512_movm_epi32(mask));
    }
    return (size_t)(uint32_t)_mm512_reduce_add_epi32(found);
}

static TARGET uint64_t mask_ge(const float *block, float threshold) {
    const __m512 limit = _mm512_set1_ps(threshold);
    uint64_t mask = 0;
    for (int i = 0; i < 4; i++)
        mask |= (uint64_t)_mm512_cmp_ps_mask(_mm512_loadu_ps(block + 16 * i), limit, _CMP_GE_OQ)
                << (16 * i);
    return mask;
}

static TARGET size_t gather(const float *block, int32_t first_id, float threshold, float *values,
                            int32_t *ids) {
    const __m512 limit = _mm512_set1_ps(threshold);
    const __m512i count_up =
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    size_t count = 0;
    for (int i = 0; i < 4; i++) {
        __m512 v = _mm512_loadu_ps(block + 16 * i);
        __m512i id = _mm512_add_epi32(_mm512_set1_epi32(first_id + 16 * i), count_up);
        __mmask16 mask = _mm512_cmp_ps_mask(v, limit, _CMP_GE_OQ);
        /* Packed in the register and stored whole: packing stores are slow on some machines. */
        _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(mask, v));
        _mm512_storeu_si512(ids + count, _mm512_maskz_compress_epi32(mask, id));
        count += (size_t)__builtin_popcount(mask);
    }
    return count;
}

INLINE __m512 weight_of(__m512 value, __m512 top, __m512 scale) {
    const __m512 grid = _mm512_set1_ps(HG_GRID);
    __m512 w = raw_weight_of(value, top, scale);
    __mmask16 is_fine = _mm512_cmp_ps_mask(w, grid, _CMP_LT_OQ);
    return _mm512_mask_sub_ps(w, is_fine, _mm512_add_ps(w, grid), grid);
}

static TARGET void weights(const float *values, size_t count, float top, float scale, float *out) {
    const __m512 vtop = _mm512_set1_ps(top), vscale = _mm512_set1_ps(scale);
    for (size_t i = 0; i < count; i += 16)
        _mm512_storeu_ps(out + i, weight_of(_mm512_loadu_ps(values + i), vtop, vscale));
}

/* Weights, split and summed as lanes.h says. */
struct sum {
    __m512i high_bits, low_bits;
};

INLINE void add(struct sum *sum, __m512 weight) {
    const __m512 high_magic = _mm512_set1_ps(HG_HIGH_MAGIC);
    __m512 high = _mm512_add_ps(weight, high_magic);
    __m512 rest = _mm512_sub_ps(weight, _mm512_sub_ps(high, high_magic));
    __m512 low = _mm512_add_ps(rest, _mm512_set1_ps(HG_LOW_MAGIC));
    sum->high_bits = _mm512_add_epi32(sum->high_bits, _mm512_castps_si512(high));
    sum->low_bits = _mm512_add_epi32(sum->low_bits, _mm512_castps_si512(low));
}

/* The sum modulo 2^32: _mm512_reduce_add_epi32 adds signed numbers, which must not overflow. */
INLINE uint32_t fold(__m512i v) {
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i quarter =
        _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    quarter = _mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0xee));
    return (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0x55)));
}

INLINE double total_of(struct sum sum) {
    return hg_high_total(fold(sum.high_bits)) + hg_low_total(fold(sum.low_bits));
}

static TARGET double chunk_sum(const float *chunk, float top, float scale) {
    const __m512 vtop = _mm512_set1_ps(top), vscale = _mm512_set1_ps(scale);
    struct sum sum = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i < HG_CHUNK; i += 16) /* rounded as part of the sum */
        add(&sum, raw_weight_of(_mm512_loadu_ps(chunk + i), vtop, vscale));
    return total_of(sum);
}

static TARGET double light_sum(const float *chunk, float top, float scale) {
    const __m512 vtop = _mm512_set1_ps(top), vscale = _mm512_set1_ps(scale);
    const __m512 magic = _mm512_set1_ps(HG_LOW_MAGIC);
    __m512i bits = _mm512_setzero_si512();
    for (size_t i = 0; i < HG_CHUNK; i += 16) {
        __m512 w = raw_weight_of(_mm512_loadu_ps(chunk + i), vtop, vscale);
        bits = _mm512_add_epi32(bits, _mm512_castps_si512(_mm512_add_ps(w, magic)));
    }
    return hg_low_total(fold(bits));
}

static TARGET double sum_ge(const float *chunk, const float *weight, float threshold) {
    const __m512 limit = _mm512_set1_ps(threshold);
    struct sum sum = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i < HG_CHUNK; i += 16) {
        __mmask16 mask = _mm512_cmp_ps_mask(_mm512_loadu_ps(chunk + i), limit, _CMP_GE_OQ);
        add(&sum, _mm512_maskz_loadu_ps(mask, weight + i));
    }
    return total_of(sum);
}

const struct hg_lanes hg_lanes_avx512 = {
    .name = "avx512",
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
