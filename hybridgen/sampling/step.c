/* See step.h. */
#include "hybridgen/sampling/step.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hybridgen/sampling/row.h"

/* FinishReason of hybridgen/request.py. */
enum { FINISH_STOP = 1, FINISH_LENGTH = 2, FINISH_STOP_STRING = 3, FINISH_ERROR = 5 };

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* The step as pointers, every one checked to lie inside its segment. */
struct step {
    const struct hg_lanes *lanes;
    struct hg_scratch *scratch;
    const struct hg_row *rows;
    const float *logits;
    size_t num_rows, row_floats, vocab, max_model_len, num_slots, slot_bytes, logprob_depth;
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

static const uint64_t *geometry(const struct hg_segment *segment) {
    return ((const struct hg_header *)segment->bytes)->geometry;
}

/* Is offset + count * size, each factor from a header, inside `have` bytes? */
static int fits(uint64_t offset, uint64_t count, uint64_t size, size_t have) {
    uint64_t bytes, end;
    return !__builtin_mul_overflow(count, size, &bytes) &&
           !__builtin_add_overflow(offset, bytes, &end) && end <= have;
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
    const uint64_t *l = geometry(&a[HG_ARG_LOGITS]), *s = geometry(&a[HG_ARG_SAMPLED]);
    const uint64_t *slots = geometry(&a[HG_ARG_SLOTS]), *tokens = geometry(&a[HG_ARG_TOKENS]);
    const uint64_t *logprobs = geometry(&a[HG_ARG_LOGPROBS]);
    int is_right =
        l[0] && l[0] < 1u << 20 && l[1] && l[1] < 1u << 20 && l[2] && l[2] <= INT32_MAX &&
        l[3] >= l[2] * sizeof(float) && l[3] % sizeof(float) == 0 && l[4] % sizeof(float) == 0 &&
        fits(l[4], l[0] * l[1], l[3], a[HG_ARG_LOGITS].size) &&
        l[6] >= sizeof(struct hg_step) + l[1] * sizeof(struct hg_row) &&
        fits(HG_RECORDS_OFFSET, l[0], l[6], l[4]) &&
        s[0] == l[0] && s[1] == l[1] && s[2] == l[5] && s[2] && s[2] < 1u << 20 &&
        s[3] >= s[2] * sizeof(struct hg_lane) + s[1] * sizeof(struct hg_sampled) &&
        fits(HG_RECORDS_OFFSET, s[0], s[3], a[HG_ARG_SAMPLED].size) &&
        slots[1] >= sizeof(struct hg_slot) &&
        fits(HG_RECORDS_OFFSET, slots[0], slots[1], a[HG_ARG_SLOTS].size) &&
        tokens[0] == slots[0] && tokens[1] == slots[2] && tokens[1] < 1ull << 31 &&
        fits(HG_RECORDS_OFFSET, tokens[0], tokens[1] * sizeof(int32_t), a[HG_ARG_TOKENS].size) &&
        logprobs[0] == slots[0] && logprobs[1] && logprobs[1] < 1u << 31 &&
        fits(HG_RECORDS_OFFSET, logprobs[0], logprobs[1] * sizeof(struct hg_logprob),
             a[HG_ARG_LOGPROBS].size);
    if (!is_right)
        snprintf(error, error_bytes, "the segments' geometries do not fit each other or their size");
    return is_right ? 0 : -1;
}

/* Find the step; returns 1, or 0 when it is poisoned, or -1 with `error`. */
static int open_step(const struct hg_segment *a, uint64_t number, uint64_t lane, struct step *s,
                     char *error, size_t error_bytes) {
    if (check_segments(a, error, error_bytes))
        return -1;
    const uint64_t *l = geometry(&a[HG_ARG_LOGITS]), *sampled = geometry(&a[HG_ARG_SAMPLED]);
    const uint64_t *slots = geometry(&a[HG_ARG_SLOTS]);
    uint64_t index = number % l[0];
    const uint8_t *record = a[HG_ARG_LOGITS].bytes + HG_RECORDS_OFFSET + index * l[6];
    const struct hg_step *head = (const struct hg_step *)record;
    uint8_t *lanes = a[HG_ARG_SAMPLED].bytes + HG_RECORDS_OFFSET + index * sampled[3];
    uint64_t ready = load(&head->ready);
    if (ready == HG_POISON || (lane < l[5] && load(&((struct hg_lane *)lanes)[lane].done) == HG_POISON))
        return 0;
    if (number == 0 || ready != number || head->num_rows > l[1] || lane >= l[5]) {
        snprintf(error, error_bytes,
                 "step %llu lane %llu is not there to sample: the ring shows step %llu with %llu "
                 "rows, %llu lanes",
                 (unsigned long long)number, (unsigned long long)lane, (unsigned long long)ready,
                 (unsigned long long)head->num_rows, (unsigned long long)l[5]);
        return -1;
    }
    s->rows = (const struct hg_row *)(record + sizeof *head);
    s->num_rows = head->num_rows;
    s->logits = (const float *)(a[HG_ARG_LOGITS].bytes + l[4] + index * l[1] * l[3]);
    s->row_floats = l[3] / sizeof(float);
    s->vocab = l[2];
    s->done = &((struct hg_lane *)lanes)[lane].done;
    s->results = (struct hg_sampled *)(lanes + sampled[2] * sizeof(struct hg_lane));
    s->slots = a[HG_ARG_SLOTS].bytes + HG_RECORDS_OFFSET;
    s->num_slots = slots[0];
    s->slot_bytes = slots[1];
    s->max_model_len = slots[2];
    s->tokens = (int32_t *)(a[HG_ARG_TOKENS].bytes + HG_RECORDS_OFFSET);
    s->logprobs = (struct hg_logprob *)(a[HG_ARG_LOGPROBS].bytes + HG_RECORDS_OFFSET);
    s->logprob_depth = geometry(&a[HG_ARG_LOGPROBS])[1];
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
            uint64_t prompt_len = load(&slot->prompt_len), generated = load(&slot->generated);
            is_right = (row->position >= prompt_len && row->position - prompt_len <= generated) ||
                       load(&slot->epoch) != row->epoch;
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
    if (position + 1 >= load(&slot->max_len) || position + 1 >= s->max_model_len)
        return FINISH_LENGTH;
    return 0;
}

/* The index word is void while the record is being replaced, and stored last. */
static void write_logprob(const struct step *s, uint64_t slot, uint64_t index,
                          const struct hg_choice *choice) {
    struct hg_logprob *record = &s->logprobs[slot * s->logprob_depth + index % s->logprob_depth];
    store(&record->generated_index, UINT64_MAX);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    record->token_id = choice->token_id;
    record->logprob = choice->logprob;
    record->num_top = choice->num_top;
    for (uint32_t i = 0; i < choice->num_top; i++)
        record->top[i] = choice->top[i];
    store(&record->generated_index, index);
}

/* The row ends without a token. */
static struct hg_sampled end_row(struct hg_slot *slot, uint64_t reason, uint64_t row_error,
                                 uint64_t generated) {
    store(&slot->finish, reason | row_error << 8 | generated << 16);
    return (struct hg_sampled){-1, HG_ROW_FINISHED | HG_ROW_NO_TOKEN, NAN, 0};
}

static struct hg_sampled choose_token(const struct step *s, const struct hg_row *row,
                                      const float *logits, struct hg_slot *slot,
                                      struct hg_step_report *report) {
    uint64_t prompt_len = load(&slot->prompt_len), generated = load(&slot->generated);
    uint64_t index = row->position - prompt_len;
    int32_t *tokens = s->tokens + row->slot * s->max_model_len;
    struct hg_choice choice;
    if (hg_sample_row(s->lanes, s->scratch, logits, s->vocab, &slot->sampling, tokens, prompt_len,
                      row->position, &choice) != HG_ROW_OK) {
        report->num_invalid++;
        return end_row(slot, FINISH_ERROR, HG_ROW_INVALID_LOGITS, generated);
    }
    if (slot->sampling.num_logprobs >= 0)
        write_logprob(s, row->slot, index, &choice);
    tokens[row->position] = choice.token_id;
    uint64_t reason = finish_reason(s, slot, choice.token_id, row->position);
    if (reason)
        store(&slot->finish, reason | (index + 1) << 16);
    store(&slot->generated, index + 1);
    report->num_tokens++;
    return (struct hg_sampled){choice.token_id, reason ? HG_ROW_FINISHED : 0, choice.logprob, 0};
}

static struct hg_sampled do_row(const struct step *s, const struct hg_row *row, const float *logits,
                                struct hg_step_report *report) {
    struct hg_slot *slot = slot_at(s, row->slot);
    if (load(&slot->epoch) != row->epoch) {
        report->num_stale++;
        return (struct hg_sampled){-1, HG_ROW_STALE | HG_ROW_FINISHED, NAN, 0};
    }
    report->detokenizers |= 1ull << (row->detokenizer % 64);
    uint64_t index = row->position - load(&slot->prompt_len), generated = load(&slot->generated);
    uint64_t finish = load(&slot->finish), num_final = finish >> 16;
    if (finish && num_final <= index) /* a step that was under way when the request ended */
        return (struct hg_sampled){-1, HG_ROW_FINISHED | HG_ROW_NO_TOKEN, NAN, 0};
    if (index < generated) { /* published before: a predecessor died after that */
        int32_t token_id = s->tokens[row->slot * s->max_model_len + row->position];
        uint32_t flags = finish && num_final == index + 1 ? HG_ROW_FINISHED : 0;
        return (struct hg_sampled){token_id, flags, NAN, 0};
    }
    /* A matched stop string is a complete answer: it wins over a cancel that came as late. */
    if (load(&slot->stop))
        return end_row(slot, FINISH_STOP_STRING, HG_ROW_OK, generated);
    uint64_t end_reason = load(&slot->end_reason);
    if (end_reason)
        return end_row(slot, end_reason & 0xff, HG_ROW_OK, generated);
    return choose_token(s, row, logits, slot, report);
}

int hg_sample_step(const struct hg_segment segments[HG_NUM_ARGS], const struct hg_lanes *lanes,
                   uint64_t step, uint64_t lane, struct hg_step_report *report, char *error,
                   size_t error_bytes) {
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
    for (size_t r = 0; r < s.num_rows; r++) {
        if (s.rows[r].lane != lane)
            continue;
        s.results[r] = do_row(&s, &s.rows[r], s.logits + r * s.row_floats, report);
        report->num_rows++;
    }
    /* A word that was poisoned meanwhile stays so: nobody waits for this step any more. */
    uint64_t before = load(s.done);
    if (before != HG_POISON)
        __atomic_compare_exchange_n(s.done, &before, step, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    syscall(SYS_futex, s.done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return 0;
}
