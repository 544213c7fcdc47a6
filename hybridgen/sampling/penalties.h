/* Bias, penalties and bans: the few logits of a row that are not what the model said. */
#ifndef HYBRIDGEN_SAMPLING_PENALTIES_H
#define HYBRIDGEN_SAMPLING_PENALTIES_H

#include "hybridgen/sampling/view.h"
#include "ipc/layout.h"

/* Compute the adjusted logit of every touched id into the view's scratch and bring `block_max` up
 * to date.  In this order, in float32: bias; repetition penalty (ids of prompt and output);
 * frequency and presence penalty (ids of the output); ban of end-of-text and stop ids before
 * min_tokens.  A finite logit stays finite.  `history` holds `position` ids. */
void hg_adjust(struct hg_view *view, const struct hg_sampling *params, const int32_t *history,
               size_t prompt_len, size_t position);

/* Leave the scratch as hg_adjust found it. */
void hg_adjust_undo(struct hg_view *view);

#endif
