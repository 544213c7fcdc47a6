/* See turn.h. */
#include "hybridgen/sampling/turn.h"

#include "hybridgen/sampling/open_step.h"
#include "ipc/wait.h"

static const uint64_t *ready_word(const struct hg_segments *s, uint64_t step) {
    size_t index = step % s->logits.depth;
    const uint8_t *record = s->bytes[HG_ARG_LOGITS] + HG_RECORDS_OFFSET;
    return &((const struct hg_step *)(record + index * s->logits.step_bytes))->ready;
}

static const uint64_t *done_word(const struct hg_segments *s, uint64_t step, uint64_t lane) {
    size_t index = step % s->sampled.depth;
    const uint8_t *record = s->bytes[HG_ARG_SAMPLED] + HG_RECORDS_OFFSET;
    return &((const struct hg_lane *)(record + index * s->sampled.step_bytes))[lane].done;
}

static int sample_if_there(const struct hg_segments *segments, const struct hg_lanes *lanes,
                           const struct hg_masks *masks, uint64_t step, uint64_t lane, int is_rest,
                           struct hg_step_report *report, char *error, size_t error_bytes) {
    if (hg_sample_step(segments, lanes, masks, step, lane, is_rest, report, error, error_bytes) ==
        0)
        return 0;
    if (hg_load(ready_word(segments, step)) == step)
        return -1;
    /* Its place is being reused, so nobody waits for this lane's rows of it. */
    *report = (struct hg_step_report){0};
    return 0;
}

/* The first step after `seen` that the gpu process is not writing over yet. */
static uint64_t first_open(uint64_t depth, uint64_t latest, uint64_t seen) {
    uint64_t max_open = depth - 1; /* the step after the latest is already in the oldest's place */
    uint64_t oldest = latest > max_open ? latest - max_open : 0;
    /* More than the latest was never there: `latest` was damaged when it was seen. */
    return (seen > oldest && seen <= latest ? seen : oldest) + 1;
}

int hg_next_step(const struct hg_segments *segments, const struct hg_lanes *lanes,
                 const struct hg_masks *masks, uint64_t lane, uint64_t seen, int64_t spin_ns,
                 int64_t timeout_ns, struct hg_turn *turn, char *error, size_t error_bytes) {
    uint64_t *word = (uint64_t *)(segments->bytes[HG_ARG_LOGITS] + HG_LATEST_OFFSET);
    uint64_t latest = hg_wait(word, seen, spin_ns, timeout_ns);
    *turn = (struct hg_turn){.latest = latest, .step = seen};
    if (latest == seen || latest == HG_POISON)
        return 0;
    uint64_t step = first_open(segments->logits.depth, latest, seen);
    turn->step = step < latest ? step : latest;
    if (step > latest || hg_load(done_word(segments, step, lane)) >= step)
        return 0;
    return sample_if_there(segments, lanes, masks, step, lane, 0, &turn->report, error, error_bytes);
}

int hg_await_rows(const struct hg_segments *segments, uint64_t step, uint64_t lane, int64_t spin_ns,
                  int64_t timeout_ns) {
    struct hg_open_step s = {0};
    char error[200];
    if (hg_open_step(segments, step, lane, &s, error, sizeof error) <= 0)
        return 1; /* hg_rest_of_step says what is wrong with it, if anything is */
    const int64_t start_ns = hg_now_ns();
    while (!hg_has_complete(&s)) {
        if (hg_now_ns() - start_ns >= spin_ns) {
            const int64_t nap_ns = timeout_ns - spin_ns;
            const struct timespec nap = {nap_ns / 1000000000, nap_ns % 1000000000};
            if (nap_ns > 0)
                nanosleep(&nap, NULL); /* cut short by a signal, it is over just so */
            return hg_has_complete(&s);
        }
        HG_PAUSE();
    }
    return 1;
}

int hg_rest_of_step(const struct hg_segments *segments, const struct hg_lanes *lanes,
                    const struct hg_masks *masks, uint64_t step, uint64_t lane,
                    struct hg_step_report *report, char *error, size_t error_bytes) {
    return sample_if_there(segments, lanes, masks, step, lane, 1, report, error, error_bytes);
}
