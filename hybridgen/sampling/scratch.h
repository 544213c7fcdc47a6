/* Working memory of one thread, sized once per vocabulary. */
#ifndef HYBRIDGEN_SAMPLING_SCRATCH_H
#define HYBRIDGEN_SAMPLING_SCRATCH_H

#include "hybridgen/sampling/lanes.h"

struct hg_scratch {
    size_t vocab;                              /* what the arrays are sized for */
    void *memory;                              /* the one allocation behind them */
    /* One per block, padded with -inf to a whole number of masks. */
    float *block_max;
    /* One per chunk. */
    double *sum;
    /* One per block; all zero between rows, cleared by the list of touched ids. */
    uint64_t *touched, *seen;
    uint32_t *rank; /* touched ids in earlier blocks */
    /* One per touched id, in order of ids. */
    int32_t *touched_id;
    float *bias, *adjusted, *original;
    uint32_t *count;
    /* One per candidate, in order of ids. */
    float *value, *weight, *part_weight;
    int32_t *id;
    uint64_t *key;
    /* The row with -inf for what its grammar does not allow. */
    float *masked;
    /* The row's last, partial chunk padded with -inf; a chunk with adjusted logits. */
    float tail[HG_CHUNK], patch[HG_CHUNK];
};

/* This thread's scratch for `vocab` logits, or NULL when memory is short. */
struct hg_scratch *hg_scratch_get(size_t vocab);

#endif
