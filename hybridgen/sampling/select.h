/* Where to cut a list of candidates, without sorting it. */
#ifndef HYBRIDGEN_SAMPLING_SELECT_H
#define HYBRIDGEN_SAMPLING_SELECT_H

#include "hybridgen/sampling/scratch.h"

/* A key orders candidates as the definition of "most likely first" does: higher logit first, and
 * among equal logits the lower id first.  Both zeros are equal.  No two ids share a key. */
static inline uint32_t hg_ordered(float value) {
    union {
        float value;
        uint32_t bits;
    } u = {.value = value + 0.0f};
    return u.bits ^ (u.bits >> 31 ? 0xffffffffu : 0x80000000u);
}

static inline float hg_unordered(uint32_t ordered) {
    union {
        uint32_t bits;
        float value;
    } u = {.bits = ordered ^ (ordered >> 31 ? 0x80000000u : 0xffffffffu)};
    return u.value;
}

static inline uint64_t hg_key(float value, int32_t id) {
    return (uint64_t)hg_ordered(value) << 32 | (uint32_t)~id;
}

/* The key of the last candidate to keep, going through the candidates from the highest key down
 * and adding their weights to `sum` until it is at least `limit`; the lowest key of all if it
 * never is.  `weight` NULL counts candidates.  There is at least one candidate, no key twice; both
 * arrays are used up.  Linear in `count`: each turn divides the range of keys in question by 256
 * or more. */
uint64_t hg_cut(uint64_t *key, float *weight, size_t count, double sum, double limit);

#endif
