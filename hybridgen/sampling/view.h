/* A logits row as the loops see it: whole chunks, with adjusted logits in place of the original
 * ones.  The row itself is never written: it may lie in memory that the device fills. */
#ifndef HYBRIDGEN_SAMPLING_VIEW_H
#define HYBRIDGEN_SAMPLING_VIEW_H

#include <math.h>
#include <string.h>

#include "hybridgen/sampling/scratch.h"

struct hg_view {
    const struct hg_lanes *lanes;
    struct hg_scratch *scratch;
    const float *row;
    size_t vocab, num_chunks;
    size_t num_blocks;  /* whole chunks of blocks, then padded to a whole number of masks */
    size_t num_touched; /* ids whose adjusted logit differs from the row; 0 on the plain view */
};

static inline struct hg_view hg_view_make(const struct hg_lanes *lanes, struct hg_scratch *scratch,
                                          const float *row, size_t vocab) {
    size_t num_chunks = (vocab + HG_CHUNK - 1) / HG_CHUNK, rest = vocab % HG_CHUNK;
    size_t num_blocks = (num_chunks * HG_BLOCKS_PER_CHUNK + 63) / 64 * 64;
    if (rest) {
        memcpy(scratch->tail, row + (vocab - rest), rest * sizeof(float));
        for (size_t i = rest; i < HG_CHUNK; i++)
            scratch->tail[i] = -INFINITY;
    }
    for (size_t b = num_chunks * HG_BLOCKS_PER_CHUNK; b < num_blocks; b++)
        scratch->block_max[b] = -INFINITY;
    return (struct hg_view){lanes, scratch, row, vocab, num_chunks, num_blocks, 0};
}

/* Chunk `c` of the row as it came. */
static inline const float *hg_plain_chunk(const struct hg_view *v, size_t c) {
    return (c + 1) * HG_CHUNK <= v->vocab ? v->row + c * HG_CHUNK : v->scratch->tail;
}

/* Write the adjusted logits of block `b` over a copy of the block. */
static inline void hg_patch_block(const struct hg_view *v, size_t b, float *copy) {
    const struct hg_scratch *s = v->scratch;
    const float *adjusted = s->adjusted + s->rank[b];
    for (uint64_t word = s->touched[b]; word; word &= word - 1)
        copy[__builtin_ctzll(word)] = *adjusted++;
}

/* Chunk `c` with adjusted logits; valid until the next call. */
static inline const float *hg_chunk(const struct hg_view *v, size_t c) {
    const float *plain = hg_plain_chunk(v, c);
    if (!v->num_touched)
        return plain;
    struct hg_scratch *s = v->scratch;
    const uint64_t *word = s->touched + c * HG_BLOCKS_PER_CHUNK;
    if (!(word[0] | word[1] | word[2] | word[3]))
        return plain;
    memcpy(s->patch, plain, sizeof s->patch);
    for (size_t i = 0; i < HG_BLOCKS_PER_CHUNK; i++)
        hg_patch_block(v, c * HG_BLOCKS_PER_CHUNK + i, s->patch + i * HG_BLOCK);
    return s->patch;
}

/* Block `b` with adjusted logits; valid until the next call. */
static inline const float *hg_block(const struct hg_view *v, size_t b) {
    const float *plain = hg_plain_chunk(v, b / HG_BLOCKS_PER_CHUNK) +
                         b % HG_BLOCKS_PER_CHUNK * HG_BLOCK;
    if (!v->num_touched || !v->scratch->touched[b])
        return plain;
    memcpy(v->scratch->patch, plain, HG_BLOCK * sizeof(float));
    hg_patch_block(v, b, v->scratch->patch);
    return v->scratch->patch;
}

#endif
