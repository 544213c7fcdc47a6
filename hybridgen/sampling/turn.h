/* One turn of a sampler's loop: wait for a step and do a lane's rows of it. */
#ifndef HYBRIDGEN_SAMPLING_TURN_H
#define HYBRIDGEN_SAMPLING_TURN_H

#include "hybridgen/sampling/step.h"

struct hg_turn {
    uint64_t latest; /* of the ring; HG_POISON when it is retired */
    uint64_t step;   /* up to here this lane is through, but for the rows that were left */
    struct hg_step_report report;
};

/* Wait (ipc/wait.h) until `latest` is not `seen`, then do the first step after `seen` that can be
 * open still: whoever was away for longer than the ring is deep has missed the others.  Nothing
 * stands between the look that finds the step and its sampling: a device waits for `done`.
 *
 * turn->step is `seen` when no step came, and when the ring is retired.  A step that another
 * incarnation finished, and one whose place is being reused, are passed over: the report is zero.
 *
 * Returns 0; or -1 with `error` filled in when turn->step is there and cannot be sampled. */
int hg_next_step(const struct hg_segments *segments, const struct hg_lanes *lanes,
                 const struct hg_masks *masks, uint64_t lane, uint64_t seen, int64_t spin_ns,
                 int64_t timeout_ns, struct hg_turn *turn, char *error, size_t error_bytes);

/* Wait, spinning and then asleep once, until hg_rest_of_step has an answer; has it?  Yes, when a row
 * that was left is there, complete; and when the step itself is there no more, or is damaged: then
 * it leaves nothing, or says so.  Neither a device nor poison wakes the sleeper. */
int hg_await_rows(const struct hg_segments *segments, uint64_t step, uint64_t lane, int64_t spin_ns,
                  int64_t timeout_ns);

/* Do what is left of a step; otherwise as above, without a wait. */
int hg_rest_of_step(const struct hg_segments *segments, const struct hg_lanes *lanes,
                    const struct hg_masks *masks, uint64_t step, uint64_t lane,
                    struct hg_step_report *report, char *error, size_t error_bytes);

#endif
