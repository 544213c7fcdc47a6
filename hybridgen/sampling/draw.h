/* The draw: from a list of weights in order of ids, by their running sum.
 *
 * Sums of weights are exact (lanes.h).  So a draw depends on what is kept, and not on what stands
 * beside it with weight 0, on how the weights were grouped for adding, or on who added them. */
#ifndef HYBRIDGEN_SAMPLING_DRAW_H
#define HYBRIDGEN_SAMPLING_DRAW_H

#include "hybridgen/sampling/view.h"
#include "ipc/layout.h"

/* log2(e) / temperature, rounded once: what lanes.h calls scale. */
float hg_scale_of(double temperature);

/* The top_k that cuts `vocab` logits, or 0 for one that keeps them all. */
size_t hg_top_k(const struct hg_sampling *params, size_t vocab);

/* The first chunk at which the running sum of the scratch's chunk sums exceeds `target`;
 * `before` becomes the sum before that chunk.  There is one: target is u times the total with
 * u <= 1 - 2^-53, which even rounded is below the total. */
size_t hg_draw_chunk(const struct hg_scratch *scratch, size_t num_chunks, double target,
                     double *before);

/* The same within a chunk of weights. */
size_t hg_draw_in_chunk(const float *weight, double before, double target);

/* Cut the candidates that stand in the scratch (candidates.h) by top_k, top_p and min_p, and draw
 * from what is left.  Any list will do that holds all that the cut keeps: more candidates of lower
 * logits give the same id.
 *
 * Every candidate lies in [threshold, top], `top` being the row's largest logit.  `total` is the
 * sum of the weights of all logits of the row; read for top_p without top_k only.  The view's row
 * is not read: it may be NULL. */
int32_t hg_draw_kept(const struct hg_view *view, const struct hg_sampling *params, size_t count,
                     float threshold, float top, float scale, double total, double uniform);

#endif
