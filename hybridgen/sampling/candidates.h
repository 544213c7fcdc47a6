/* The few tokens that a cut can leave: gathered in order of ids, then cut by weight or number.
 *
 * They stand in the scratch as value, id and weight, padded to whole chunks with -inf and weight
 * 0.  A cut takes no token away: it sets the weight of what it drops to 0. */
#ifndef HYBRIDGEN_SAMPLING_CANDIDATES_H
#define HYBRIDGEN_SAMPLING_CANDIDATES_H

#include "hybridgen/sampling/view.h"

/* Gather every logit that reaches `threshold`; returns how many. Weights are not set. */
size_t hg_gather(const struct hg_view *view, float threshold);

/* Take `count` candidates, at least one and at most the vocabulary, from elsewhere: all logits that
 * reach some threshold, in order of ids.  Weights are not set. */
void hg_take_candidates(struct hg_scratch *scratch, const float *value, const int32_t *id,
                        size_t count);

/* The key (select.h) of the last candidate to keep, counting from the first down: `limit` of them,
 * or as many as weigh at least `limit` together; a key that keeps them all when they weigh less.
 * Every candidate lies in [low, top]. */
uint64_t hg_last_kept(const struct hg_view *view, size_t count, float low, float top,
                      int is_weighted, double limit);

/* Drop candidates with a lower key. */
void hg_drop_below(struct hg_scratch *scratch, size_t count, uint64_t last_kept);

/* Sum each chunk of candidate weights into the scratch; returns the total. */
double hg_sum_candidates(const struct hg_view *view, size_t count);

#endif
