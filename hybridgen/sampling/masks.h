/* What grammars allow next, per slot: a cache of one sampler, in its own memory.  A mask is a pure
 * function of the slot's grammar and its tokens, so whoever lacks one computes it again. */
#ifndef HYBRIDGEN_SAMPLING_MASKS_H
#define HYBRIDGEN_SAMPLING_MASKS_H

#include <stddef.h>
#include <stdint.h>

struct hg_mask {
    uint64_t epoch, position; /* the occupant, and the absolute position of the token to choose */
    int is_spent;             /* its grammar cannot go on: the row ends with an error */
    uint64_t *words;          /* bit i % 64 of word i / 64: id i may come next; NULL at first */
};

struct hg_masks {
    size_t num_slots, vocab;
    struct hg_mask *of_slot;
};

/* Returns 0, or -1 without memory. */
int hg_masks_open(struct hg_masks *masks, size_t num_slots, size_t vocab);

void hg_masks_close(struct hg_masks *masks);

/* Keep a mask over the slot's last one.  `bits` has one bit per id, ids beyond them are not
 * allowed; NULL: the grammar cannot go on.  Returns 0, or -1 without memory. */
int hg_masks_set(struct hg_masks *masks, size_t slot, uint64_t epoch, uint64_t position,
                 const void *bits, size_t num_bytes);

/* NULL when it is not there. */
const struct hg_mask *hg_masks_find(const struct hg_masks *masks, size_t slot, uint64_t epoch,
                                    uint64_t position);

/* `row` with -inf where an id is not allowed, into `out`, as long as the row. */
void hg_mask_row(const uint64_t *words, const float *row, size_t vocab, float *out);

#endif
