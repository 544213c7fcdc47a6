/* The feed-forward block of experts: records and phases; packed by experts.py. */
#ifndef HYBRIDGEN_EXPERTS_H
#define HYBRIDGEN_EXPERTS_H

#include "hybridgen/models/ops.h"

/* Weights of one layer, and the work space that all layers share. A choice is one expert of one
 * token; the choices of a batch are grouped by expert, and inside a group in the order of the
 * tokens, so that each expert's weights are read once, and only if somebody chose it. */
struct hg_experts {
    const void *router; /* num_experts outputs; behind them the gate of the shared expert */
    const void *gate_up; /* [expert] paired panels */
    const void *down;    /* [expert] panels */
    const void *shared_gate_up; /* unless shared_size is 0 */
    const void *shared_down;
    int64_t gate_up_bytes; /* of one expert */
    int64_t down_bytes;
    int64_t num_experts;
    int64_t num_chosen;
    int64_t size;
    int64_t shared_size;
    int64_t hidden_size;
    int64_t dtype;
    int64_t gate; /* epilogue of the gated products */
    int64_t is_share_normalized;
    float *logits;   /* [token][logits_stride] */
    float *shares;   /* [token][num_chosen], greatest first */
    int32_t *chosen; /* [token][num_chosen] */
    int32_t *places; /* [token][num_chosen]: row of a choice in `rows` and `inner` */
    int32_t *ends;   /* [expert]: end of its group; the next one's begins there */
    int32_t *active; /* [1 + expert]: how many have a group, then which, rising */
    float *rows; /* inputs of the choices, then their outputs; behind them the shared expert's */
    float *inner;
    float *shared_inner;
    int64_t logits_stride;
    int64_t rows_stride;
    int64_t inner_stride;
    int64_t shared_inner_stride;
};

/* y[r], or what is added to y[r]: what the experts make of x[r]; y may be x. */
struct hg_mixture {
    const struct hg_experts *experts;
    const float *x;
    float *y;
    int64_t x_stride;
    int64_t y_stride;
    int64_t num_rows;
    int64_t is_added;
};

/* Every thread of the pool calls this; it ends with a barrier. The outputs of a token are added
 * from its greatest share to its smallest, the shared expert's last, whatever else is in the
 * batch and however many threads there are: the same bits in any company. */
void hg_mix(struct hg_pool *pool, int thread, const struct hg_mixture *op);

#endif
