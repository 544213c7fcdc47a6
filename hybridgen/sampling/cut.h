/* A row's cut (ipc/layout.h): the token without the row, where the cut proves it.
 *
 * A cut holds every id whose logit reaches its threshold, and the sum of the weights of all logits.
 * What it lacks lies below the threshold, and sums are exact (lanes.h).  So it proves the token
 *
 *   greedy      always: the top logit is among the candidates
 *   top_k       with k candidates or more
 *   else        when the candidates weigh top_p of the total (all of it, without top_p), or when
 *               min_p drops whatever lies below the threshold
 *
 * and then the token is, bit for bit, the one that row.h would choose from the whole row. */
#ifndef HYBRIDGEN_SAMPLING_CUT_H
#define HYBRIDGEN_SAMPLING_CUT_H

#include "hybridgen/sampling/lanes.h"
#include "hybridgen/sampling/scratch.h"
#include "ipc/layout.h"

#define HG_CUT_UNSURE (-1)
#define HG_CUT_INVALID (-2)

/* Returns the token; or HG_CUT_UNSURE when the whole row has to say: where the parameters change
 * logits, mask them or ask for log-probabilities, and where the cut is of another step or temperature, proves
 * nothing, or contradicts itself.
 *
 * With `has_token` the device already goes on with what it chose, and nothing else can be the
 * answer: its token, or HG_CUT_INVALID where the row gave it none.
 *
 * `cut` is followed by the `capacity` values and ids of layout.h. */
int32_t hg_cut_choose(const struct hg_lanes *lanes, struct hg_scratch *scratch,
                      const struct hg_cut *cut, size_t capacity, uint64_t step, size_t vocab,
                      const struct hg_sampling *params, size_t prompt_len, size_t position,
                      int has_token);

#endif
