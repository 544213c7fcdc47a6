/* The loops over a logits row, once per instruction set.
 *
 * Every variant computes the same bits: a vector is always 16 lanes wide (one AVX-512 register,
 * two AVX registers, or 16 scalars), multiply and add are never contracted (-ffp-contract=off),
 * and sums of weights are exact, so that no order of adding can show.  So a token does not depend
 * on the machine that sampled it.
 *
 * Weight of a logit z below the top logit m at temperature T, all in float32:
 *
 *     y = max((z - m) * scale, -127),  scale = log2(e) / T rounded once
 *     n = y rounded to the nearest integer (by adding and subtracting 1.5 * 2^23)
 *     f = y - n, exact, in [-1/2, 1/2]
 *     w = poly(f) * 2^n, the power added to the exponent bits
 *     weight = w < 2^-11 ? (w + 2^-11) - 2^-11 : w, the nearest multiple of 2^-34
 *
 * poly is the degree-5 minimax polynomial of 2^f with poly(0) = 1 exactly; its relative error is
 * below 2e-7.  The top logit has weight 1 exactly, -inf and everything more than 2^35 times less
 * likely than the top has weight 0 exactly, and weights never decrease by more than one unit in the
 * last place (or 2^-34, if that is more) as z grows.
 *
 * Every weight is a multiple of 2^-34, also those above 2^-11, whose last place is no finer, and at
 * most 1.  So the sum of up to HG_MAX_VOCAB weights is a multiple of 2^-34 of at most 53 bits: any
 * double that holds one holds it exactly, whatever was added first, next to what, and by whom.
 *
 * Vectors are summed in integers.  A weight is split as high * 2^-16 + low * 2^-34 by adding
 * numbers whose last places are these (HG_HIGH_MAGIC, HG_LOW_MAGIC); the integers stand in the low
 * bits of the sums.  Adding the second rounds as above, so w need not be rounded before; where all
 * of a chunk weighs little, it is all that is needed.
 */
#ifndef HYBRIDGEN_SAMPLING_LANES_H
#define HYBRIDGEN_SAMPLING_LANES_H

#include <stddef.h>
#include <stdint.h>

#define HG_LANES 16u
#define HG_BLOCK 64u  /* floats that share one maximum and one 64-bit word of a bitmap */
#define HG_CHUNK 256u /* floats that share one sum: four blocks */
#define HG_BLOCKS_PER_CHUNK (HG_CHUNK / HG_BLOCK)

#define HG_MAX_VOCAB (1u << 19) /* what sums of weights are exact for */

#define HG_WEIGHT_FLOOR -127.0f
#define HG_ROUND_MAGIC 12582912.0f /* 1.5 * 2^23 */
#define HG_POLY1 0x1.62e42ap-1f
#define HG_POLY2 0x1.ebf9bcp-3f
#define HG_POLY3 0x1.c6b752p-5f
#define HG_POLY4 0x1.3cea88p-7f
#define HG_POLY5 0x1.5bba14p-10f
#define HG_GRID 0x1p-11f /* its last place is 2^-34 */
#define HG_HIGH_MAGIC 0x1.8p7f
#define HG_HIGH_BITS 0x43400000u
#define HG_LOW_MAGIC 0x1.8p-11f
#define HG_LOW_BITS 0x3a400000u
/* Logits whose y is below these weigh less than 2^-12, and nothing; well clear of rounding. */
#define HG_LIGHT_BELOW -12.01f
#define HG_WEIGHTLESS_BELOW -35.01f

/* The sum of a chunk's low parts from that of the bits of low + HG_LOW_MAGIC, modulo 2^32. */
static inline double hg_low_total(uint32_t bits) {
    return (double)(int32_t)(bits - HG_CHUNK * HG_LOW_BITS) * 0x1p-34;
}

/* The sum of its high parts from that of the bits of weight + HG_HIGH_MAGIC, modulo 2^32. */
static inline double hg_high_total(uint32_t bits) {
    return (double)(bits - HG_CHUNK * HG_HIGH_BITS) * 0x1p-16;
}

/* One instruction set's loops.  Counts of floats are multiples of HG_LANES unless said otherwise;
 * no pointer needs alignment. */
struct hg_lanes {
    const char *name;
    /* Maximum of each block of `num_chunks` chunks; nonzero if there is a NaN among them. */
    int (*scan)(const float *row, size_t num_chunks, float *block_max);
    float (*max)(const float *values, size_t count);
    size_t (*count_ge)(const float *values, size_t count, float threshold);
    /* Bit i: block[i] >= threshold. */
    uint64_t (*mask_ge)(const float *block, float threshold);
    /* Append the block's values >= threshold and their ids, in order; up to HG_BLOCK slots of
     * both outputs may be overwritten.  Returns how many were appended. */
    size_t (*gather)(const float *block, int32_t first_id, float threshold, float *values,
                     int32_t *ids);
    /* Sum of the weights of one chunk. */
    double (*chunk_sum)(const float *chunk, float top, float scale);
    /* The same, for chunks of weights below 2^-12 only. */
    double (*light_sum)(const float *chunk, float top, float scale);
    /* Sum of those weights of one chunk whose value reaches the threshold. */
    double (*sum_ge)(const float *chunk, const float *weight, float threshold);
    void (*weights)(const float *values, size_t count, float top, float scale, float *out);
};

extern const struct hg_lanes hg_lanes_generic;
#if defined(__x86_64__)
extern const struct hg_lanes hg_lanes_avx2;
extern const struct hg_lanes hg_lanes_avx512;
#endif

#define HG_MAX_VARIANTS 3
/* Fill `out` with the variants this machine can run, best first; returns how many. */
size_t hg_lanes_usable(const struct hg_lanes *out[HG_MAX_VARIANTS]);

#endif
