/* One row: logits, parameters, history, seed and position in; one token id out.
 *
 * A pure function of its arguments.  The order of application: the grammar's mask, logit_bias,
 * repetition penalty, frequency and presence penalty, min_tokens ban (penalties.h), temperature,
 * top_k, top_p, min_p, then the draw.
 *
 * Definitions, with z the adjusted logit, w its weight (lanes.h), "first" meaning higher z, then
 * lower id:
 *   greedy   temperature below 1e-5: the first of all
 *   top_k    keep the first k with a finite z (0, or at least the vocabulary: keep all)
 *   top_p    keep the shortest run of first ones whose weight is >= top_p * weight kept so far
 *   min_p    keep w >= min_p, the top weight being 1
 *   draw     the lowest id at which the running sum of kept weights in order of ids exceeds
 *            u * (sum of kept weights), u = Philox(seed, position) in [0, 1)
 *            (sums of weights are exact, products with them rounded once to double)
 *   logprob  log-softmax of the logits as the model gave them, before mask, bias, penalties and
 *            temperature (vLLM's default)
 *   mask     ids that are not allowed have the logit -inf, whatever their bias.  Where min_tokens
 *            would ban all that is left, the text is complete and min_tokens gives way
 */
#ifndef HYBRIDGEN_SAMPLING_ROW_H
#define HYBRIDGEN_SAMPLING_ROW_H

#include "hybridgen/sampling/view.h"
#include "ipc/layout.h"

#define HG_MIN_TEMPERATURE 1e-5f

struct hg_choice {
    int32_t token_id;
    float logprob;    /* NaN when not asked for */
    uint32_t num_top; /* as many as asked for, fewer when fewer logits are finite */
    struct hg_bias top[HG_MAX_LOGPROBS];
};

/* The sum of the weights of a row without NaN or +inf and with a finite logit; at most
 * HG_MAX_VOCAB of them. */
double hg_total_weight(const struct hg_lanes *lanes, struct hg_scratch *scratch, const float *row,
                       size_t vocab, double temperature);

/* `vocab` is at most HG_MAX_VOCAB.  Returns HG_ROW_OK, or HG_ROW_INVALID_LOGITS for NaN, +inf, or no finite logit left to choose.
 * `mask` has one bit per id (masks.h); NULL allows all.  `history` holds `position` ids, the first `prompt_len` of them the prompt; ids outside the
 * vocabulary are ignored everywhere. */
enum hg_row_error hg_sample_row(const struct hg_lanes *lanes, struct hg_scratch *scratch,
                                const float *row, size_t vocab, const struct hg_sampling *params,
                                const uint64_t *mask, const int32_t *history, size_t prompt_len,
                                size_t position, struct hg_choice *choice);

#endif
