/* See step.h. */
#include "hybridgen/sampling/step.h"

#include <limits.h>
#include <stdio.h>

#include "hybridgen/sampling/cut.h"
#include "hybridgen/sampling/row.h"
#include "ipc/words.h"

/* FinishReason of hybridgen/request.py. */
enum { FINISH_STOP = 1, FINISH_LENGTH = 2, FINISH_STOP_STRING = 3, FINISH_ERROR = 5 };

/* A result's flag between two looks at `whole`; nobody else reads results before `done`. */
#define ROW_LEFT (1u << 31)

/* The step as pointers, every one checked to lie inside its segment. */
struct step {
    const struct hg_lanes *lanes;
    struct hg_scratch *scratch;
    uint64_t number;
    const uint64_t *whole;
    const struct hg_row *rows;
    const float *logits;
    const uint8_t *cuts; /* NULL: rows have none, and are there as soon as the step is */
    size_t depth, cut_capacity, num_rows, row_floats, vocab, max_model_len;
    size_t num_slots, slot_bytes, logprob_depth;
    uint64_t *done;
    struct hg_sampled *results;
    uint8_t *slots;
    int32_t *tokens;
    struct hg_logprob *logprobs;
    uint64_t lane;
};

static const char *const NAMES[HG_NUM_ARGS] = {"logits", "sampled", "slots", "tokens", "logprobs"};
static const uint64_t KINDS[HG_NUM_ARGS] = {HG_LOGITS, HG_SAMPLED, HG_SLOTS, HG_TOKENS,
                                            HG_LOGPROBS};

/* The geometry words of each kind by name, in layout.h's order. */
struct logits_geometry {
    uint64_t depth, max_rows, vocab_size, row_bytes, data_offset, num_lanes, step_bytes;
    uint64_t cut_capacity;
};
struct sampled_geometry {
    uint64_t depth, max_rows, num_lanes, step_bytes;
};
struct slots_geometry {
    uint64_t num_slots, slot_bytes, max_model_len;
};
struct tokens_geometry {
    uint64_t num_slots, max_model_len;
};
struct logprobs_geometry {
    uint64_t num_slots, depth;
};

static const void *geometry(const struct hg_segment *segment) {
    return ((const struct hg_header *)segment->bytes)->geometry;
}

/* Is offset + count * size, each factor from a header, inside `have` bytes? */
static int fits(uint64_t offset, uint64_t count, uint64_t size, size_t have) {
    uint64_t bytes, end;
    return !__builtin_mul_overflow(count, size, &bytes) &&
           !__builtin_add_overflow(offset, bytes, &end) && end <= have;
}

#define MAX_COUNT (1u << 20) /* of steps, rows, lanes: keeps products of two far from 2^64 */

static uint64_t cut_offset(const struct logits_geometry *g) {
    return g->data_offset + g->depth * g->max_rows * g->row_bytes;
}

/* Asked once the rows are known to fit. */
static int cuts_fit(const struct logits_geometry *g, size_t have) {
    if (g->cut_capacity == 0)
        return 1;
    return g->cut_capacity < MAX_COUNT && g->cut_capacity % 8 == 0 && cut_offset(g) % 8 == 0 &&
           fits(cut_offset(g), g->depth * g->max_rows, HG_CUT_BYTES(g->cut_capacity), have);
}

static int logits_fit(const struct hg_segment *a) {
    const struct logits_geometry *g = geometry(&a[HG_ARG_LOGITS]);
    return g->depth && g->depth < MAX_COUNT && g->max_rows && g->max_rows < MAX_COUNT &&
           g->vocab_size && g->row_bytes >= g->vocab_size * sizeof(float) &&
           g->row_bytes % sizeof(float) == 0 && g->data_offset % sizeof(float) == 0 &&
           fits(g->data_offset, g->depth * g->max_rows, g->row_bytes, a[HG_ARG_LOGITS].size) &&
           g->step_bytes >= sizeof(struct hg_step) + g->max_rows * sizeof(struct hg_row) &&
           fits(HG_RECORDS_OFFSET, g->depth, g->step_bytes, g->data_offset) &&
           cuts_fit(g, a[HG_ARG_LOGITS].size);
}

static int sampled_fits(const struct hg_segment *a) {
    const struct logits_geometry *logits = geometry(&a[HG_ARG_LOGITS]);
    const struct sampled_geometry *g = geometry(&a[HG_ARG_SAMPLED]);
    return g->depth == logits->depth && g->max_rows == logits->max_rows &&
           g->num_lanes == logits->num_lanes && g->num_lanes && g->num_lanes < MAX_COUNT &&
           g->step_bytes >= g->num_lanes * sizeof(struct hg_lane) +
                                g->max_rows * sizeof(struct hg_sampled) &&
           fits(HG_RECORDS_OFFSET, g->depth, g->step_bytes, a[HG_ARG_SAMPLED].size);
}

static int slots_fit(const struct hg_segment *a) {
    const struct slots_geometry *slots = geometry(&a[HG_ARG_SLOTS]);
    const struct tokens_geometry *tokens = geometry(&a[HG_ARG_TOKENS]);
    const struct logprobs_geometry *logprobs = geometry(&a[HG_ARG_LOGPROBS]);
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

static int check_segments(const struct hg_segment *a, char *error, size_t error_bytes) {
    for (int i = 0; i < HG_NUM_ARGS; i++) {
        const struct hg_header *header = (const struct hg_header *)a[i].bytes;
        if (a[i].size >= HG_RECORDS_OFFSET && header->magic == HG_MAGIC &&
            header->layout_version == HG_LAYOUT_VERSION && header->kind == KINDS[i])
            continue;
        snprintf(error, error_bytes, "the %s buffer holds no segment of that kind", NAMES[i]);
        return -1;
    }
    uint64_t vocab = ((const struct logits_geometry *)geometry(&a[HG_ARG_LOGITS]))->vocab_size;
    if (vocab > HG_MAX_VOCAB) {
        snprintf(error, error_bytes, "a vocabulary of %llu; the sampler's limit is %u",
                 (unsigned long long)vocab, HG_MAX_VOCAB);
        return -1;
    }
    int is_right = logits_fit(a) && sampled_fits(a) && slots_fit(a);
    if (!is_right)
        snprintf(error, error_bytes, "the segments' geometries do not fit each other or their size");
    return is_right ? 0 : -1;
}

/* Find the step; returns 1, or 0 when it is poisoned, or -1 with `error`. */
static int open_step(const struct hg_segment *a, uint64_t number, uint64_t lane, struct step *s,
                     char *error, size_t error_bytes) {
    if (check_segments(a, error, error_bytes))
        return -1;
    const struct logits_geometry *logits = geometry(&a[HG_ARG_LOGITS]);
    const struct sampled_geometry *sampled = geometry(&a[HG_ARG_SAMPLED]);
    const struct slots_geometry *slots = geometry(&a[HG_ARG_SLOTS]);
    const struct logprobs_geometry *logprobs = geometry(&a[HG_ARG_LOGPROBS]);
    uint64_t index = number % logits->depth;
    const uint8_t *record = a[HG_ARG_LOGITS].bytes + HG_RECORDS_OFFSET + index * logits->step_bytes;
    const struct hg_step *head = (const struct hg_step *)record;
    uint8_t *lanes = a[HG_ARG_SAMPLED].bytes + HG_RECORDS_OFFSET + index * sampled->step_bytes;
    uint64_t ready = hg_load(&head->ready);
    int is_lane = lane < logits->num_lanes;
    if (ready == HG_POISON ||
        (is_lane && hg_load(&((struct hg_lane *)lanes)[lane].done) == HG_POISON))
        return 0;
    if (number == 0 || ready != number || head->num_rows > logits->max_rows || !is_lane) {
        snprintf(error, error_bytes,
                 "step %llu lane %llu is not there to sample: the ring shows step %llu with %llu "
                 "rows, %llu lanes",
                 (unsigned long long)number, (unsigned long long)lane, (unsigned long long)ready,
                 (unsigned long long)head->num_rows, (unsigned long long)logits->num_lanes);
        return -1;
    }
    s->number = number;
    s->whole = &head->whole;
    s->rows = (const struct hg_row *)(record + sizeof *head);
    s->depth = logits->depth;
    s->num_rows = head->num_rows;
    s->logits = (const float *)(a[HG_ARG_LOGITS].bytes + logits->data_offset +
                                index * logits->max_rows * logits->row_bytes);
    s->row_floats = logits->row_bytes / sizeof(float);
    s->cut_capacity = logits->cut_capacity;
    s->cuts = logits->cut_capacity == 0
                  ? NULL
                  : a[HG_ARG_LOGITS].bytes + cut_offset(logits) +
                        index * logits->max_rows * HG_CUT_BYTES(logits->cut_capacity);
    s->vocab = logits->vocab_size;
    s->done = &((struct hg_lane *)lanes)[lane].done;
    s->results = (struct hg_sampled *)(lanes + sampled->num_lanes * sizeof(struct hg_lane));
    s->slots = a[HG_ARG_SLOTS].bytes + HG_RECORDS_OFFSET;
    s->num_slots = slots->num_slots;
    s->slot_bytes = slots->slot_bytes;
    s->max_model_len = slots->max_model_len;
    s->tokens = (int32_t *)(a[HG_ARG_TOKENS].bytes + HG_RECORDS_OFFSET);
    s->logprobs = (struct hg_logprob *)(a[HG_ARG_LOGPROBS].bytes + HG_RECORDS_OFFSET);
    s->logprob_depth = logprobs->depth;
    s->lane = lane;
    return 1;
}

static struct hg_slot *slot_at(const struct step *s, uint64_t index) {
    return (struct hg_slot *)(s->slots + index * s->slot_bytes);
}

/* Do the lane's rows fit the slots?  Asked before the first store. */
static int check_rows(const struct step *s, char *error, size_t error_bytes) {
    for (size_t r = 0; r < s->num_rows; r++) {
        const struct hg_row *row = &s->rows[r];
        if (row->lane != s->lane)
            continue;
        int is_right = row->slot < s->num_slots && row->position < s->max_model_len;
        if (is_right) {
            struct hg_slot *slot = slot_at(s, row->slot);
            uint64_t prompt_len = hg_load(&slot->prompt_len), generated = hg_load(&slot->generated);
            /* A step that was enqueued before the request ended runs one token ahead of it; on a
             * device that cuts, so do steps whose rows other lanes have yet to do. */
            uint64_t most = generated + (s->cuts ? s->depth : hg_load(&slot->finish) != 0);
            is_right = (row->position >= prompt_len && row->position - prompt_len <= most) ||
                       hg_load(&slot->epoch) != row->epoch;
        }
        if (is_right)
            continue;
        snprintf(error, error_bytes,
                 "row %zu (slot %u, position %llu) does not fit its slot: slots %zu, context %zu",
                 r, row->slot, (unsigned long long)row->position, s->num_slots, s->max_model_len);
        return -1;
    }
    return 0;
}

static int is_among(int32_t id, const int32_t *ids, int32_t count, int32_t most) {
    for (int32_t i = 0; i < count && i < most; i++)
        if (ids[i] == id)
            return 1;
    return 0;
}

static uint64_t finish_reason(const struct step *s, const struct hg_slot *slot, int32_t token_id,
                              uint64_t position) {
    const struct hg_sampling *p = &slot->sampling;
    if (!p->ignore_eos && is_among(token_id, p->eos_ids, p->num_eos_ids, HG_MAX_EOS_IDS))
        return FINISH_STOP;
    if (is_among(token_id, p->stop_ids, p->num_stop_ids, HG_MAX_STOP_IDS))
        return FINISH_STOP;
    if (position + 1 >= hg_load(&slot->max_len) || position + 1 >= s->max_model_len)
        return FINISH_LENGTH;
    return 0;
}

/* The index word is void while the record is being replaced, and stored last. */
static void write_logprob(const struct step *s, uint64_t slot, uint64_t index,
                          const struct hg_choice *choice) {
    struct hg_logprob *record = &s->logprobs[slot * s->logprob_depth + index % s->logprob_depth];
    hg_store(&record->generated_index, UINT64_MAX);
    record->token_id = choice->token_id;
    record->logprob = choice->logprob;
    record->num_top = choice->num_top;
    for (uint32_t i = 0; i < choice->num_top; i++)
        record->top[i] = choice->top[i];
    hg_store(&record->generated_index, index);
}

/* The row ends without a token. */
static struct hg_sampled end_row(struct hg_slot *slot, uint64_t reason, uint64_t row_error,
                                 uint64_t generated) {
    hg_store(&slot->finish, reason | row_error << 8 | generated << 16);
    return (struct hg_sampled){-1, HG_ROW_FINISHED | HG_ROW_NO_TOKEN, NAN, 0};
}

static struct hg_sampled publish(const struct step *s, const struct hg_row *row,
                                 struct hg_slot *slot, const struct hg_choice *choice) {
    uint64_t index = row->position - hg_load(&slot->prompt_len);
    if (slot->sampling.num_logprobs >= 0)
        write_logprob(s, row->slot, index, choice);
    s->tokens[row->slot * s->max_model_len + row->position] = choice->token_id;
    uint64_t reason = finish_reason(s, slot, choice->token_id, row->position);
    if (reason)
        hg_store(&slot->finish, reason | (index + 1) << 16);
    hg_store(&slot->generated, index + 1);
    return (struct hg_sampled){choice->token_id, reason ? HG_ROW_FINISHED : 0, choice->logprob, 0};
}

static int32_t ask_cut(const struct step *s, size_t r, const struct hg_slot *slot) {
    const struct hg_row *row = &s->rows[r];
    if (!s->cuts || !(row->flags & (HG_ROW_HAS_CUT | HG_ROW_HAS_TOKEN)))
        return HG_CUT_UNSURE;
    const uint8_t *cut = s->cuts + r * HG_CUT_BYTES(s->cut_capacity);
    return hg_cut_choose(s->lanes, s->scratch, (const struct hg_cut *)cut, s->cut_capacity,
                         s->number, s->vocab, &slot->sampling, hg_load(&slot->prompt_len),
                         row->position, (row->flags & HG_ROW_HAS_TOKEN) != 0);
}

/* The row's logits are none that a token can be chosen from. */
static struct hg_sampled end_invalid(struct hg_slot *slot, struct hg_step_report *report) {
    report->num_invalid++;
    return end_row(slot, FINISH_ERROR, HG_ROW_INVALID_LOGITS, hg_load(&slot->generated));
}

static struct hg_sampled choose_from_cut(const struct step *s, size_t r, struct hg_slot *slot,
                                         struct hg_step_report *report) {
    struct hg_choice choice = {.token_id = ask_cut(s, r, slot), .logprob = NAN};
    if (choice.token_id == HG_CUT_INVALID)
        return end_invalid(slot, report);
    if (choice.token_id < 0)
        return (struct hg_sampled){-1, ROW_LEFT, NAN, 0};
    report->num_cut++;
    report->num_tokens++;
    return publish(s, &s->rows[r], slot, &choice);
}

static struct hg_sampled choose_from_row(const struct step *s, size_t r, struct hg_slot *slot,
                                         struct hg_step_report *report) {
    const struct hg_row *row = &s->rows[r];
    struct hg_choice choice;
    if (hg_sample_row(s->lanes, s->scratch, s->logits + r * s->row_floats, s->vocab,
                      &slot->sampling, s->tokens + row->slot * s->max_model_len,
                      hg_load(&slot->prompt_len), row->position, &choice) != HG_ROW_OK)
        return end_invalid(slot, report);
    report->num_tokens++;
    return publish(s, row, slot, &choice);
}

static struct hg_sampled do_row(const struct step *s, size_t r, int is_whole,
                                struct hg_step_report *report) {
    const struct hg_row *row = &s->rows[r];
    struct hg_slot *slot = slot_at(s, row->slot);
    if (hg_load(&slot->epoch) != row->epoch) {
        report->num_stale++;
        return (struct hg_sampled){-1, HG_ROW_STALE | HG_ROW_FINISHED, NAN, 0};
    }
    uint64_t index = row->position - hg_load(&slot->prompt_len);
    uint64_t generated = hg_load(&slot->generated);
    uint64_t finish = hg_load(&slot->finish), num_final = finish >> 16;
    if (finish && num_final <= index) /* a step that was under way when the request ended */
        return (struct hg_sampled){-1, HG_ROW_FINISHED | HG_ROW_NO_TOKEN, NAN, 0};
    if (index < generated) { /* published before: a predecessor died after that */
        int32_t token_id = s->tokens[row->slot * s->max_model_len + row->position];
        uint32_t flags = finish && num_final == index + 1 ? HG_ROW_FINISHED : 0;
        return (struct hg_sampled){token_id, flags, NAN, 0};
    }
    if (index > generated) { /* the step before was another lane's, which has yet to do it */
        report->num_early++;
        return (struct hg_sampled){-1, ROW_LEFT, NAN, 0};
    }
    /* A matched stop string is a complete answer: it wins over a cancel that came as late. */
    if (hg_load(&slot->stop))
        return end_row(slot, FINISH_STOP_STRING, HG_ROW_OK, generated);
    uint64_t end_reason = hg_load(&slot->end_reason);
    if (end_reason)
        return end_row(slot, end_reason & 0xff, HG_ROW_OK, generated);
    is_whole &= !s->cuts || !(row->flags & HG_ROW_HAS_TOKEN);
    return is_whole ? choose_from_row(s, r, slot, report) : choose_from_cut(s, r, slot, report);
}

/* Do every row of the lane, or only those that were left; counts those that (still) are. */
static void do_rows(const struct step *s, int is_rest, int is_whole,
                    struct hg_step_report *report) {
    report->num_left = report->num_early = 0;
    for (size_t r = 0; r < s->num_rows; r++) {
        const struct hg_row *row = &s->rows[r];
        if (row->lane != s->lane || (is_rest && !(s->results[r].flags & ROW_LEFT)))
            continue;
        struct hg_sampled result = do_row(s, r, is_whole, report);
        s->results[r] = result;
        if (result.flags & ROW_LEFT) {
            report->num_left++;
            continue;
        }
        report->num_rows++;
        if (!(result.flags & HG_ROW_STALE))
            report->detokenizers |= 1ull << (row->detokenizer % 64);
    }
}

int hg_sample_step(const struct hg_segment segments[HG_NUM_ARGS], const struct hg_lanes *lanes,
                   uint64_t step, uint64_t lane, int is_rest, struct hg_step_report *report,
                   char *error, size_t error_bytes) {
    struct step s = {.lanes = lanes};
    *report = (struct hg_step_report){0};
    int is_open = open_step(segments, step, lane, &s, error, error_bytes);
    if (is_open <= 0)
        return is_open;
    s.scratch = hg_scratch_get(s.vocab);
    if (!s.scratch) {
        snprintf(error, error_bytes, "no memory for a vocabulary of %zu", s.vocab);
        return -1;
    }
    if (check_rows(&s, error, error_bytes))
        return -1;
    /* Whoever can go on without the whole row does so first. */
    do_rows(&s, is_rest, !s.cuts, report);
    if (report->num_left && hg_load(s.whole) == step)
        do_rows(&s, 1, 1, report);
    if (report->num_left)
        return 0;
    /* A word that was poisoned meanwhile stays so: nobody waits for this step any more. */
    uint64_t before = hg_load(s.done);
    if (before != HG_POISON)
        __atomic_compare_exchange_n(s.done, &before, step, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    hg_futex_wake(s.done, INT_MAX);
    return 0;
}
