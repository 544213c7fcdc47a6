/* A step as a lane's sampler sees it: pointers into the segments. */
#ifndef HYBRIDGEN_SAMPLING_OPEN_STEP_H
#define HYBRIDGEN_SAMPLING_OPEN_STEP_H

#include "hybridgen/sampling/lanes.h"
#include "hybridgen/sampling/masks.h"
#include "hybridgen/sampling/segments.h"
#include "ipc/words.h"

/* The step as pointers, every one checked to lie inside its segment. */
struct hg_open_step {
    const struct hg_lanes *lanes;
    const struct hg_masks *masks;
    struct hg_scratch *scratch;
    uint64_t number;
    const uint64_t *ready, *whole;
    const struct hg_row *rows;
    const float *logits;
    const uint8_t *cuts; /* NULL: rows have none, and are there as soon as the step is */
    size_t depth, cut_capacity, num_rows, row_floats, vocab, max_model_len;
    size_t num_slots, slot_bytes, logprob_depth;
    uint64_t *done;
    struct hg_sampled *results;
    uint8_t *slots;
    int32_t *tokens;
    struct hg_logprob *logprobs;
    uint64_t lane;
};

/* Find the step; returns 1 with all filled in but the caller's `lanes`, `masks` and `scratch`, or 0
 * when it is poisoned, or -1 with `error`. */
int hg_open_step(const struct hg_segments *segments, uint64_t number, uint64_t lane,
                 struct hg_open_step *s, char *error, size_t error_bytes);

static inline const struct hg_cut *hg_cut_at(const struct hg_open_step *s, size_t r) {
    return (const struct hg_cut *)(s->cuts + r * HG_CUT_BYTES(s->cut_capacity));
}

/* A result's flag until its row is done; nobody else reads results before `done`. */
#define HG_ROW_LEFT (1u << 31)

/* Is this row there, complete? */
static inline int hg_is_complete(const struct hg_open_step *s, size_t r) {
    return !s->cuts || hg_load(s->whole) == s->number ||
           hg_load(&hg_cut_at(s, r)->urgent) == s->number;
}

/* Is one of the lane's rows that were left? */
int hg_has_complete(const struct hg_open_step *s);

#endif
