/* See open_step.h. */
#include "hybridgen/sampling/open_step.h"

#include <stdio.h>

int hg_open_step(const struct hg_segments *a, uint64_t number, uint64_t lane,
                 struct hg_open_step *s, char *error, size_t error_bytes) {
    const struct hg_logits_geometry *logits = &a->logits;
    const struct hg_sampled_geometry *sampled = &a->sampled;
    uint64_t index = number % logits->depth;
    const uint8_t *records = a->bytes[HG_ARG_LOGITS] + HG_RECORDS_OFFSET;
    const uint8_t *record = records + index * logits->step_bytes;
    const struct hg_step *head = (const struct hg_step *)record;
    uint8_t *lanes = a->bytes[HG_ARG_SAMPLED] + HG_RECORDS_OFFSET + index * sampled->step_bytes;
    uint64_t ready = hg_load(&head->ready);
    uint64_t num_rows = head->num_rows; /* once: what is checked is what is used */
    int is_lane = lane < logits->num_lanes;
    if (ready == HG_POISON ||
        (is_lane && hg_load(&((struct hg_lane *)lanes)[lane].done) == HG_POISON))
        return 0;
    if (number == 0 || ready != number || num_rows > logits->max_rows || !is_lane) {
        snprintf(error, error_bytes,
                 "step %llu lane %llu is not there to sample: the ring shows step %llu with %llu "
                 "rows, %llu lanes",
                 (unsigned long long)number, (unsigned long long)lane, (unsigned long long)ready,
                 (unsigned long long)num_rows, (unsigned long long)logits->num_lanes);
        return -1;
    }
    s->number = number;
    s->ready = &head->ready;
    s->whole = &head->whole;
    s->rows = (const struct hg_row *)(record + sizeof *head);
    s->depth = logits->depth;
    s->num_rows = num_rows;
    s->logits = (const float *)(a->bytes[HG_ARG_LOGITS] + logits->data_offset +
                                index * logits->max_rows * logits->row_bytes);
    s->row_floats = logits->row_bytes / sizeof(float);
    s->cut_capacity = logits->cut_capacity;
    s->cuts = logits->cut_capacity == 0
                  ? NULL
                  : a->bytes[HG_ARG_LOGITS] + hg_cut_offset(logits) +
                        index * logits->max_rows * HG_CUT_BYTES(logits->cut_capacity);
    s->vocab = logits->vocab_size;
    s->done = &((struct hg_lane *)lanes)[lane].done;
    s->results = (struct hg_sampled *)(lanes + sampled->num_lanes * sizeof(struct hg_lane));
    s->slots = a->bytes[HG_ARG_SLOTS] + HG_RECORDS_OFFSET;
    s->num_slots = a->slots.num_slots;
    s->slot_bytes = a->slots.slot_bytes;
    s->max_model_len = a->slots.max_model_len;
    s->tokens = (int32_t *)(a->bytes[HG_ARG_TOKENS] + HG_RECORDS_OFFSET);
    s->logprobs = (struct hg_logprob *)(a->bytes[HG_ARG_LOGPROBS] + HG_RECORDS_OFFSET);
    s->logprob_depth = a->logprobs.depth;
    s->lane = lane;
    return 1;
}

int hg_has_complete(const struct hg_open_step *s) {
    for (size_t r = 0; r < s->num_rows; r++)
        if (s->rows[r].lane == s->lane && s->results[r].flags & HG_ROW_LEFT && hg_is_complete(s, r))
            return 1;
    return 0;
}
