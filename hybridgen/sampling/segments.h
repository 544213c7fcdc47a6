/* The shared-memory segments that a sampler works on, once they are known to fit each other. */
#ifndef HYBRIDGEN_SAMPLING_SEGMENTS_H
#define HYBRIDGEN_SAMPLING_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/layout.h"

struct hg_segment {
    uint8_t *bytes;
    size_t size;
};

/* In the order in which Python hands them over. */
enum { HG_ARG_LOGITS, HG_ARG_SAMPLED, HG_ARG_SLOTS, HG_ARG_TOKENS, HG_ARG_LOGPROBS, HG_NUM_ARGS };

/* The geometry words of each kind by name, in layout.h's order. */
struct hg_logits_geometry {
    uint64_t depth, max_rows, vocab_size, row_bytes, data_offset, num_lanes, step_bytes;
    uint64_t cut_capacity;
};
struct hg_sampled_geometry {
    uint64_t depth, max_rows, num_lanes, step_bytes;
};
struct hg_slots_geometry {
    uint64_t num_slots, slot_bytes, max_model_len;
};
struct hg_tokens_geometry {
    uint64_t num_slots, max_model_len;
};
struct hg_logprobs_geometry {
    uint64_t num_slots, depth;
};

/* Geometries are copies: what was checked once cannot change under a later step. */
struct hg_segments {
    uint8_t *bytes[HG_NUM_ARGS];
    struct hg_logits_geometry logits;
    struct hg_sampled_geometry sampled;
    struct hg_slots_geometry slots;
    struct hg_tokens_geometry tokens;
    struct hg_logprobs_geometry logprobs;
};

static inline uint64_t hg_cut_offset(const struct hg_logits_geometry *g) {
    return g->data_offset + g->depth * g->max_rows * g->row_bytes;
}

/* Returns 0; or -1 with `error` filled in when one is of another kind, or they do not fit. */
int hg_open_segments(const struct hg_segment segments[HG_NUM_ARGS], struct hg_segments *opened,
                     char *error, size_t error_bytes);

#endif
