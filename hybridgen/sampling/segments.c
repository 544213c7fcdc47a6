/* See segments.h. */
#include "hybridgen/sampling/segments.h"

#include <stdio.h>
#include <string.h>

#include "hybridgen/sampling/lanes.h"

static const char *const NAMES[HG_NUM_ARGS] = {"logits", "sampled", "slots", "tokens", "logprobs"};
static const uint64_t KINDS[HG_NUM_ARGS] = {HG_LOGITS, HG_SAMPLED, HG_SLOTS, HG_TOKENS,
                                            HG_LOGPROBS};

/* Is offset + count * size, each factor from a header, inside `have` bytes? */
static int fits(uint64_t offset, uint64_t count, uint64_t size, size_t have) {
    uint64_t bytes, end;
    return !__builtin_mul_overflow(count, size, &bytes) &&
           !__builtin_add_overflow(offset, bytes, &end) && end <= have;
}

#define MAX_COUNT (1u << 20) /* of steps, rows, lanes: keeps products of two far from 2^64 */

/* Asked once the rows are known to fit. */
static int cuts_fit(const struct hg_logits_geometry *g, size_t have) {
    if (g->cut_capacity == 0)
        return 1;
    return g->cut_capacity < MAX_COUNT && g->cut_capacity % 8 == 0 && hg_cut_offset(g) % 8 == 0 &&
           fits(hg_cut_offset(g), g->depth * g->max_rows, HG_CUT_BYTES(g->cut_capacity), have);
}

static int logits_fit(const struct hg_logits_geometry *g, size_t have) {
    return g->depth && g->depth < MAX_COUNT && g->max_rows && g->max_rows < MAX_COUNT &&
           g->vocab_size && g->row_bytes >= g->vocab_size * sizeof(float) &&
           g->row_bytes % sizeof(float) == 0 && g->data_offset % sizeof(float) == 0 &&
           fits(g->data_offset, g->depth * g->max_rows, g->row_bytes, have) &&
           g->step_bytes >= sizeof(struct hg_step) + g->max_rows * sizeof(struct hg_row) &&
           fits(HG_RECORDS_OFFSET, g->depth, g->step_bytes, g->data_offset) && cuts_fit(g, have);
}

static int sampled_fits(const struct hg_segments *s, size_t have) {
    const struct hg_sampled_geometry *g = &s->sampled;
    return g->depth == s->logits.depth && g->max_rows == s->logits.max_rows &&
           g->num_lanes == s->logits.num_lanes && g->num_lanes && g->num_lanes < MAX_COUNT &&
           g->step_bytes >= g->num_lanes * sizeof(struct hg_lane) +
                                g->max_rows * sizeof(struct hg_sampled) &&
           fits(HG_RECORDS_OFFSET, g->depth, g->step_bytes, have);
}

static int slots_fit(const struct hg_segments *s, const struct hg_segment *a) {
    const struct hg_slots_geometry *slots = &s->slots;
    const struct hg_tokens_geometry *tokens = &s->tokens;
    const struct hg_logprobs_geometry *logprobs = &s->logprobs;
    return slots->slot_bytes >= sizeof(struct hg_slot) &&
           fits(HG_RECORDS_OFFSET, slots->num_slots, slots->slot_bytes, a[HG_ARG_SLOTS].size) &&
           tokens->num_slots == slots->num_slots &&
           tokens->max_model_len == slots->max_model_len && tokens->max_model_len < 1ull << 31 &&
           fits(HG_RECORDS_OFFSET, tokens->num_slots, tokens->max_model_len * sizeof(int32_t),
                a[HG_ARG_TOKENS].size) &&
           logprobs->num_slots == slots->num_slots && logprobs->depth &&
           logprobs->depth < 1u << 31 &&
           fits(HG_RECORDS_OFFSET, logprobs->num_slots,
                logprobs->depth * sizeof(struct hg_logprob), a[HG_ARG_LOGPROBS].size);
}

static void copy_geometry(const struct hg_segment *segment, void *into, size_t size) {
    memcpy(into, ((const struct hg_header *)segment->bytes)->geometry, size);
}

int hg_open_segments(const struct hg_segment a[HG_NUM_ARGS], struct hg_segments *opened,
                     char *error, size_t error_bytes) {
    for (int i = 0; i < HG_NUM_ARGS; i++) {
        const struct hg_header *header = (const struct hg_header *)a[i].bytes;
        opened->bytes[i] = a[i].bytes;
        if (a[i].size >= HG_RECORDS_OFFSET && header->magic == HG_MAGIC &&
            header->layout_version == HG_LAYOUT_VERSION && header->kind == KINDS[i])
            continue;
        snprintf(error, error_bytes, "the %s buffer holds no segment of that kind", NAMES[i]);
        return -1;
    }
    copy_geometry(&a[HG_ARG_LOGITS], &opened->logits, sizeof opened->logits);
    copy_geometry(&a[HG_ARG_SAMPLED], &opened->sampled, sizeof opened->sampled);
    copy_geometry(&a[HG_ARG_SLOTS], &opened->slots, sizeof opened->slots);
    copy_geometry(&a[HG_ARG_TOKENS], &opened->tokens, sizeof opened->tokens);
    copy_geometry(&a[HG_ARG_LOGPROBS], &opened->logprobs, sizeof opened->logprobs);
    if (opened->logits.vocab_size > HG_MAX_VOCAB) {
        snprintf(error, error_bytes, "a vocabulary of %llu; the sampler's limit is %u",
                 (unsigned long long)opened->logits.vocab_size, HG_MAX_VOCAB);
        return -1;
    }
    int is_right = logits_fit(&opened->logits, a[HG_ARG_LOGITS].size) &&
                   sampled_fits(opened, a[HG_ARG_SAMPLED].size) && slots_fit(opened, a);
    if (!is_right)
        snprintf(error, error_bytes,
                 "the segments' geometries do not fit each other or their size");
    return is_right ? 0 : -1;
}
