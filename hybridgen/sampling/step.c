/* See step.h. */
#include "hybridgen/sampling/step.h"

#include <limits.h>
#include <stdio.h>

#include "hybridgen/sampling/cut.h"
#include "hybridgen/sampling/open_step.h"
#include "hybridgen/sampling/row.h"
#include "ipc/wait.h"

/* FinishReason of hybridgen/request.py. */
enum { FINISH_STOP = 1, FINISH_LENGTH = 2, FINISH_STOP_STRING = 3, FINISH_ERROR = 5 };

/* A row in its slot, as this process sees it: nothing of it changes while it is being done, even if
 * the shared words do.  Between `check_rows` and here they may have, so they are checked again. */
struct place {
    size_t r;
    struct hg_row row;
    struct hg_slot *slot;
    uint64_t prompt_len;
    uint64_t index; /* of the token to choose, among the generated ones */
};

static struct hg_slot *slot_at(const struct hg_open_step *s, uint64_t index) {
    return (struct hg_slot *)(s->slots + index * s->slot_bytes);
}

/* A cut comes fresh from the device, in no cache of this core: ask for all its lines at once, since
 * one after the other they take longer than the choice.  Few cuts are more than half full, and one
 * with a token is its first line. */
static void prefetch_cut(const struct hg_open_step *s, size_t r) {
    const char *cut = (const char *)hg_cut_at(s, r), *values = cut + sizeof(struct hg_cut);
    const char *ids = values + s->cut_capacity * sizeof(float);
    size_t num_candidates = s->rows[r].flags & HG_ROW_HAS_TOKEN ? 0 : s->cut_capacity / 2;
    __builtin_prefetch(cut);
    for (size_t at = 0; at < num_candidates * sizeof(float); at += 64) {
        __builtin_prefetch(values + at);
        __builtin_prefetch(ids + at);
    }
}

static int has_cut(const struct hg_open_step *s, const struct hg_row *row) {
    return s->cuts && row->flags & (HG_ROW_HAS_CUT | HG_ROW_HAS_TOKEN);
}

/* Do the lane's rows fit the slots?  Asked before the first store.  Returns 1, or 0 when it has
 * none, or -1 with `error`.  Nobody waits for a lane without rows, so its step may be replaced at
 * any time, and what it sees then are rows of another; one with rows holds the step in its place. */
static int check_rows(const struct hg_open_step *s, char *error, size_t error_bytes) {
    int has_rows = 0;
    for (size_t r = 0; r < s->num_rows; r++) {
        const struct hg_row copy = s->rows[r], *row = &copy;
        if (row->lane != s->lane)
            continue;
        has_rows = 1;
        if (has_cut(s, row))
            prefetch_cut(s, r);
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
    if (hg_load(s->ready) == s->number)
        return has_rows;
    snprintf(error, error_bytes, "step %llu was replaced meanwhile", (unsigned long long)s->number);
    return -1;
}

static int is_among(int32_t id, const int32_t *ids, int32_t count, int32_t most) {
    for (int32_t i = 0; i < count && i < most; i++)
        if (ids[i] == id)
            return 1;
    return 0;
}

static uint64_t finish_reason(const struct hg_open_step *s, const struct hg_slot *slot,
                              int32_t token_id, uint64_t position) {
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
static void write_logprob(const struct hg_open_step *s, uint64_t slot, uint64_t index,
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

static struct hg_sampled publish(const struct hg_open_step *s, const struct place *at,
                                 const struct hg_choice *choice) {
    struct hg_slot *slot = at->slot;
    if (slot->sampling.num_logprobs >= 0)
        write_logprob(s, at->row.slot, at->index, choice);
    s->tokens[at->row.slot * s->max_model_len + at->row.position] = choice->token_id;
    uint64_t reason = finish_reason(s, slot, choice->token_id, at->row.position);
    if (reason)
        hg_store(&slot->finish, reason | (at->index + 1) << 16);
    hg_store(&slot->generated, at->index + 1);
    return (struct hg_sampled){choice->token_id, reason ? HG_ROW_FINISHED : 0, choice->logprob, 0};
}

static int32_t ask_cut(const struct hg_open_step *s, const struct place *at) {
    if (!has_cut(s, &at->row))
        return HG_CUT_UNSURE;
    return hg_cut_choose(s->lanes, s->scratch, hg_cut_at(s, at->r), s->cut_capacity, s->number,
                         s->vocab, &at->slot->sampling, at->prompt_len, at->row.position,
                         (at->row.flags & HG_ROW_HAS_TOKEN) != 0);
}

/* The row's logits are none that a token can be chosen from. */
static struct hg_sampled end_invalid(struct hg_slot *slot, struct hg_step_report *report) {
    report->num_invalid++;
    return end_row(slot, FINISH_ERROR, HG_ROW_INVALID_LOGITS, hg_load(&slot->generated));
}

static struct hg_sampled choose_from_cut(const struct hg_open_step *s, const struct place *at,
                                         struct hg_step_report *report) {
    struct hg_choice choice = {.token_id = ask_cut(s, at), .logprob = NAN};
    if (choice.token_id == HG_CUT_INVALID)
        return end_invalid(at->slot, report);
    if (choice.token_id < 0)
        return (struct hg_sampled){-1, HG_ROW_LEFT, NAN, 0};
    report->num_cut++;
    report->num_tokens++;
    return publish(s, at, &choice);
}

static struct hg_sampled choose_from_row(const struct hg_open_step *s, const struct place *at,
                                         const uint64_t *mask, struct hg_step_report *report) {
    struct hg_choice choice;
    if (hg_sample_row(s->lanes, s->scratch, s->logits + at->r * s->row_floats, s->vocab,
                      &at->slot->sampling, mask, s->tokens + at->row.slot * s->max_model_len,
                      at->prompt_len, at->row.position, &choice) != HG_ROW_OK)
        return end_invalid(at->slot, report);
    report->num_tokens++;
    return publish(s, at, &choice);
}

/* A row with a grammar. */
static struct hg_sampled choose_allowed(const struct hg_open_step *s, const struct place *at,
                                        int is_whole, struct hg_step_report *report) {
    const struct hg_row *row = &at->row;
    const struct hg_mask *mask = hg_masks_find(s->masks, row->slot, row->epoch, row->position);
    report->num_unmasked += mask == NULL;
    if (mask && mask->is_spent)
        return end_row(at->slot, FINISH_ERROR, HG_ROW_GRAMMAR_SPENT, hg_load(&at->slot->generated));
    if (!mask || !is_whole)
        return (struct hg_sampled){-1, HG_ROW_LEFT, NAN, 0};
    return choose_from_row(s, at, mask->words, report);
}

/* Published before, and a predecessor died after that: read it back. */
static struct hg_sampled repeat(const struct hg_open_step *s, const struct place *at,
                                uint64_t finish, struct hg_step_report *report) {
    int32_t token_id = s->tokens[at->row.slot * s->max_model_len + at->row.position];
    if ((size_t)(uint32_t)token_id >= s->vocab) /* damaged since */
        return end_invalid(at->slot, report);
    uint32_t flags = finish && finish >> 16 == at->index + 1 ? HG_ROW_FINISHED : 0;
    return (struct hg_sampled){token_id, flags, NAN, 0};
}

static struct hg_sampled do_row(const struct hg_open_step *s, const struct place *at, int is_whole,
                                struct hg_step_report *report) {
    struct hg_slot *slot = at->slot;
    uint64_t generated = hg_load(&slot->generated);
    uint64_t finish = hg_load(&slot->finish);
    if (finish && finish >> 16 <= at->index) /* under way when the request ended */
        return (struct hg_sampled){-1, HG_ROW_FINISHED | HG_ROW_NO_TOKEN, NAN, 0};
    if (at->index < generated)
        return repeat(s, at, finish, report);
    if (at->index > generated) { /* the step before was another lane's, which has yet to do it */
        report->num_early++;
        return (struct hg_sampled){-1, HG_ROW_LEFT, NAN, 0};
    }
    /* A matched stop string is a complete answer: it wins over a cancel that came as late. */
    if (hg_load(&slot->stop))
        return end_row(slot, FINISH_STOP_STRING, HG_ROW_OK, generated);
    uint64_t end_reason = hg_load(&slot->end_reason);
    if (end_reason)
        return end_row(slot, end_reason & 0xff, HG_ROW_OK, generated);
    if (slot->sampling.grammar_kind)
        return choose_allowed(s, at, is_whole, report);
    is_whole &= !s->cuts || !(at->row.flags & HG_ROW_HAS_TOKEN);
    return is_whole ? choose_from_row(s, at, NULL, report) : choose_from_cut(s, at, report);
}

static struct hg_sampled do_row_if_current(const struct hg_open_step *s, size_t r,
                                           const struct hg_row *row, int is_whole,
                                           struct hg_step_report *report) {
    struct place at = {.r = r, .row = *row};
    if (row->slot < s->num_slots && row->position < s->max_model_len) {
        at.slot = slot_at(s, row->slot);
        at.prompt_len = hg_load(&at.slot->prompt_len);
        at.index = row->position - at.prompt_len;
    }
    if (!at.slot || at.prompt_len > row->position || hg_load(&at.slot->epoch) != row->epoch) {
        report->num_stale++;
        return (struct hg_sampled){-1, HG_ROW_STALE | HG_ROW_FINISHED, NAN, 0};
    }
    return do_row(s, &at, is_whole, report);
}

/* Do every row of the lane, or only those that were left, by their cuts or, with `is_reading`, by
 * the complete rows that are there; counts those that are (still) left. */
static void do_rows(const struct hg_open_step *s, int is_rest, int is_reading,
                    struct hg_step_report *report) {
    report->num_left = report->num_early = report->num_unmasked = 0;
    for (size_t r = 0; r < s->num_rows; r++) {
        const struct hg_row copy = s->rows[r], *row = &copy;
        if (row->lane != s->lane || (is_rest && !(s->results[r].flags & HG_ROW_LEFT)))
            continue;
        int is_whole = is_reading ? hg_is_complete(s, r) : !s->cuts;
        struct hg_sampled result = do_row_if_current(s, r, row, is_whole, report);
        s->results[r] = result;
        if (result.flags & HG_ROW_LEFT) {
            report->num_left++;
            continue;
        }
        report->num_rows++;
        if (!(result.flags & HG_ROW_STALE))
            report->detokenizers |= 1ull << (row->detokenizer % 64);
    }
}

int hg_sample_step(const struct hg_segments *segments, const struct hg_lanes *lanes,
                   const struct hg_masks *masks, uint64_t step, uint64_t lane, int is_rest,
                   struct hg_step_report *report, char *error, size_t error_bytes) {
    const int64_t started_ns = hg_now_ns();
    struct hg_open_step s = {.lanes = lanes, .masks = masks};
    *report = (struct hg_step_report){0};
    int is_open = hg_open_step(segments, step, lane, &s, error, error_bytes);
    if (is_open <= 0)
        return is_open;
    s.scratch = hg_scratch_get(s.vocab);
    if (!s.scratch) {
        snprintf(error, error_bytes, "no memory for a vocabulary of %zu", s.vocab);
        return -1;
    }
    int has_rows = check_rows(&s, error, error_bytes);
    if (has_rows < 0)
        return -1;
    /* Whoever can go on without the whole row does so first; a row that was left has mostly asked
     * its cut, so it is read as soon as it is there. */
    if (has_rows)
        do_rows(&s, is_rest, is_rest, report);
    if (!is_rest && report->num_left && hg_has_complete(&s))
        do_rows(&s, 1, 1, report);
    if (report->num_left) {
        report->elapsed_ns = (uint64_t)(hg_now_ns() - started_ns);
        return 0;
    }
    /* A word that was poisoned meanwhile stays so: nobody waits for this step any more. */
    uint64_t before = hg_load(s.done);
    if (before != HG_POISON)
        __atomic_compare_exchange_n(s.done, &before, step, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    report->elapsed_ns = (uint64_t)(hg_now_ns() - started_ns);
    hg_futex_wake(s.done, INT_MAX);
    return 0;
}

/* Which mask the row's slot needs next, if one; `is_waiting`: the row of this step does. */
static int needs_mask(const struct hg_open_step *s, const struct hg_row *row,
                      struct hg_due_mask *due, int *is_waiting) {
    if (row->lane != s->lane || row->slot >= s->num_slots)
        return 0;
    struct hg_slot *slot = slot_at(s, row->slot);
    if (!slot->sampling.grammar_kind || hg_load(&slot->finish) ||
        hg_load(&slot->end_reason) || hg_load(&slot->epoch) != row->epoch)
        return 0;
    uint64_t next = hg_load(&slot->prompt_len) + hg_load(&slot->generated);
    *due = (struct hg_due_mask){row->slot, row->epoch, next};
    *is_waiting = next == row->position;
    return next < s->max_model_len && !hg_masks_find(s->masks, row->slot, row->epoch, next);
}

size_t hg_due_masks(const struct hg_segments *segments, const struct hg_masks *masks, uint64_t step,
                    uint64_t lane, struct hg_due_mask *due, size_t most) {
    struct hg_open_step s = {.masks = masks};
    char error[200];
    if (hg_open_step(segments, step, lane, &s, error, sizeof error) <= 0)
        return 0;
    size_t num_waiting = 0, count = 0;
    for (size_t r = 0; r < s.num_rows && count < most; r++) {
        const struct hg_row row = s.rows[r];
        int is_waiting = 0;
        if (!needs_mask(&s, &row, &due[count], &is_waiting))
            continue;
        if (is_waiting) { /* to the front */
            struct hg_due_mask first = due[num_waiting];
            due[num_waiting++] = due[count];
            due[count] = first;
        }
        count++;
    }
    return num_waiting ? num_waiting : count;
}
