/* All rows of one lane in one step, from the shared-memory segments back into them. */
#ifndef HYBRIDGEN_SAMPLING_STEP_H
#define HYBRIDGEN_SAMPLING_STEP_H

#include "hybridgen/sampling/lanes.h"
#include "hybridgen/sampling/masks.h"
#include "hybridgen/sampling/segments.h"

struct hg_step_report {
    uint64_t num_rows, num_tokens, num_stale, num_invalid;
    uint64_t detokenizers; /* bit (index % 64): has something new to read */
    uint64_t num_cut;      /* tokens that a cut gave */
    uint64_t num_left;     /* rows that wait to be complete, another lane or a mask: not done yet */
    uint64_t num_early;    /* those of them that wait for another lane */
    uint64_t num_unmasked; /* those of them that have a grammar and wait for its mask */
    uint64_t elapsed_ns;   /* of the call, without its wake-up, which may cost it its core */
};

/* Do the rows of the lane: first those whose cut gives the token (cut.h), then the others, if they
 * are there, complete.  Those that are not are left and `done` is not stored: call again, with
 * `is_rest`, which does what is left and counts nothing twice.  Rows without cuts are there as soon
 * as the step is.  Where the device chose the tokens of the step before it waited for nobody, so
 * the lane that had a row then may not have published its token yet: such a row is left too, until it
 * has.  So is a row with a grammar whose mask is not among `masks` (NULL: none is).
 *
 * Returns 0; or -1 with `error` filled in when step, rows and segments contradict each other, or the
 * step is not there any more, and then nothing was written.  A poisoned step is no error: nothing
 * is done, the report is zero.
 *
 * What is stored, per row, in this order: logprob record; token; finish word; `generated` with
 * release order, which publishes the three before it to the detokenizer; the row's result.  After
 * the lane's last row `done` with release order, then a futex wake.  A sampler may die between any
 * two of these stores: its successor repeats the step, and since a row is a pure function and a
 * token once published is read back rather than chosen again, every store is repeated unchanged. */
int hg_sample_step(const struct hg_segments *segments, const struct hg_lanes *lanes,
                   const struct hg_masks *masks, uint64_t step, uint64_t lane, int is_rest,
                   struct hg_step_report *report, char *error, size_t error_bytes);

struct hg_due_mask {
    uint64_t slot, epoch, position;
};

/* The masks that the lane lacks: those that rows of the step wait for; when none does, those of the
 * tokens after them.  Returns how many, at most `most`; 0 when the step is not there any more. */
size_t hg_due_masks(const struct hg_segments *segments, const struct hg_masks *masks, uint64_t step,
                    uint64_t lane, struct hg_due_mask *due, size_t most);

#endif
