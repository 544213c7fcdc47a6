/* The loops over a logits row, once per instruction set.
 *
 * Every variant computes the same bits: a vector is always 16 lanes wide (one AVX-512 register,
 * two AVX registers, or 16 scalars), sums are folded in the one order written down here, and
 * multiply and add are never contracted (-ffp-contract=off).  So a token does not depend on the
 * machine that sampled it.
 *
 * Weight of a logit z below the top logit m at temperature T, all in float32:
 *
 *     y = max((z - m) * scale, -127),  scale = log2(e) / T rounded once
 *     n = y rounded to the nearest integer (by adding and subtracting 1.5 * 2^23)
 *     f = y - n, exact, in [-1/2, 1/2]
 *     weight = poly(f) * 2^n, the power added to the exponent bits
 *
 * poly is the degree-5 minimax polynomial of 2^f with poly(0) = 1 exactly; its relative error is
 * below 2e-7.  The top logit has weight 1 exactly, -inf and everything 2^127 times less likely
 * than the top has weight 0 exactly, and weights never decrease by more than one unit in the last
 * place as z grows.
 *
 * Fold of 16 lanes l0 … l15 (`op` is + or max): quad q = (l[4q] op l[4q+2]) op (l[4q+1] op
 * l[4q+3]), then (q0 op q2) op (q1 op q3).
 */
#ifndef HYBRIDGEN_SAMPLING_LANES_H
#define HYBRIDGEN_SAMPLING_LANES_H

#include <stddef.h>
#include <stdint.h>

#define HG_LANES 16u
#define HG_BLOCK 64u  /* floats that share one maximum and one 64-bit word of a bitmap */
#define HG_CHUNK 256u /* floats that share one sum: four blocks */
#define HG_BLOCKS_PER_CHUNK (HG_CHUNK / HG_BLOCK)

#define HG_WEIGHT_FLOOR -127.0f
#define HG_ROUND_MAGIC 12582912.0f /* 1.5 * 2^23 */
#define HG_POLY1 0x1.62e42ap-1f
#define HG_POLY2 0x1.ebf9bcp-3f
#define HG_POLY3 0x1.c6b752p-5f
#define HG_POLY4 0x1.3cea88p-7f
#define HG_POLY5 0x1.5bba14p-10f

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
    /* Sum of the weights of one chunk: 16 vectors added pairwise (0+1, 2+3, …), then folded. */
    float (*chunk_sum)(const float *chunk, float top, float scale);
    /* Sum of the weights of one chunk whose value reaches the threshold, added in the same order. */
    float (*sum_ge)(const float *chunk, const float *weight, float threshold);
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
