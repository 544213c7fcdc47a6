/* A small team of threads that run one task together, in step.
 *
 * The caller is thread 0. Between tasks the others sleep in the kernel, so an idle engine uses no
 * CPU. Inside a task the threads meet at barriers: they spin briefly, since phases take
 * microseconds, then sleep, since another process may have taken the peer's core.
 */
#ifndef HYBRIDGEN_POOL_H
#define HYBRIDGEN_POOL_H

#include <stdint.h>

struct hg_pool;
typedef void (*hg_task)(struct hg_pool *pool, int thread, const void *context);

/* NULL when threads cannot be started (errno says why). */
struct hg_pool *hg_pool_create(int num_threads);
void hg_pool_destroy(struct hg_pool *pool);
int hg_pool_num_threads(const struct hg_pool *pool);

/* Run `task` on every thread; returns when all are done. -1 when the pool is busy already. */
int hg_pool_run(struct hg_pool *pool, hg_task task, const void *context);

/* Inside a task: take the next item of the current phase (0, 1, 2 …). */
int64_t hg_claim(struct hg_pool *pool);

/* Inside a task: wait for all threads; what they wrote is visible after; items start at 0 again. */
void hg_barrier(struct hg_pool *pool);

#endif
