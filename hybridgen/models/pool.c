#define _GNU_SOURCE
#include "hybridgen/models/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BARRIER_SPINS 2000 /* pauses, some 50 µs: longer than any imbalance between phases */
#define JOB_SPINS 20       /* next to nothing: between steps the samplers want the core */
#define LINE _Alignas(64)

struct hg_pool {
    LINE atomic_uint job;     /* number of the task; futex of sleeping workers */
    LINE atomic_uint phase;   /* barriers passed; futex of threads waiting at one */
    LINE atomic_uint arrived; /* threads at the barrier */
    LINE atomic_llong next;   /* next unclaimed item */
    LINE atomic_int is_busy;
    atomic_int is_closing;
    atomic_uint num_sleeping; /* at the barrier: nobody asleep, no wake call */
    hg_task task;
    const void *context;
    int num_threads;
    int num_started;
    pthread_t threads[];
};

struct start {
    struct hg_pool *pool;
    int thread;
};

static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(atomic_uint *word, unsigned expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

int hg_pool_num_threads(const struct hg_pool *pool)
{
    return pool->num_threads;
}

int64_t hg_claim(struct hg_pool *pool)
{
    return atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
}

void hg_barrier(struct hg_pool *pool)
{
    unsigned phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    unsigned before = atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel);
    if ((int)before + 1 == pool->num_threads) {
        /* Both are reset before anybody can pass: the store to `phase` releases them. */
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
        atomic_store(&pool->phase, phase + 1);
        if (atomic_load(&pool->num_sleeping))
            futex_wake(&pool->phase);
        return;
    }
    for (int i = 0; i < BARRIER_SPINS; i++) {
        if (atomic_load_explicit(&pool->phase, memory_order_acquire) != phase)
            return;
        pause_core();
    }
    /* Counted before the kernel compares the word, so the last thread cannot miss a sleeper. */
    atomic_fetch_add(&pool->num_sleeping, 1);
    while (atomic_load(&pool->phase) == phase)
        futex_wait(&pool->phase, phase);
    atomic_fetch_sub(&pool->num_sleeping, 1);
}

static void *work(void *argument)
{
    struct start start = *(struct start *)argument;
    free(argument);
    struct hg_pool *pool = start.pool;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < JOB_SPINS; i++) {
            if (atomic_load_explicit(&pool->job, memory_order_acquire) != seen)
                break;
            pause_core();
        }
        while (atomic_load_explicit(&pool->job, memory_order_acquire) == seen)
            futex_wait(&pool->job, seen);
        seen++;
        if (atomic_load(&pool->is_closing))
            return NULL;
        pool->task(pool, start.thread, pool->context);
        hg_barrier(pool);
    }
}

int hg_pool_run(struct hg_pool *pool, hg_task task, const void *context)
{
    if (atomic_exchange(&pool->is_busy, 1))
        return -1;
    pool->task = task;
    pool->context = context;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    if (pool->num_threads > 1) {
        atomic_fetch_add_explicit(&pool->job, 1, memory_order_release);
        futex_wake(&pool->job);
    }
    task(pool, 0, context);
    hg_barrier(pool);
    atomic_store(&pool->is_busy, 0);
    return 0;
}

static int start_thread(struct hg_pool *pool, int thread)
{
    struct start *start = malloc(sizeof *start);
    if (!start)
        return ENOMEM;
    *start = (struct start){pool, thread};
    int error = pthread_create(&pool->threads[thread - 1], NULL, work, start);
    if (error)
        free(start);
    return error;
}

struct hg_pool *hg_pool_create(int num_threads)
{
    struct hg_pool *pool;
    size_t bytes = sizeof *pool + (size_t)num_threads * sizeof(pthread_t);
    if (posix_memalign((void **)&pool, 64, bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    *pool = (struct hg_pool){.num_threads = num_threads};
    sigset_t all, old;
    sigfillset(&all);
    /* Signals belong to the interpreter's main thread. */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = 0;
    for (int i = 1; i < num_threads && !error; i++) {
        error = start_thread(pool, i);
        pool->num_started += !error;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error) {
        hg_pool_destroy(pool);
        errno = error;
        return NULL;
    }
    return pool;
}

void hg_pool_destroy(struct hg_pool *pool)
{
    atomic_store(&pool->is_closing, 1);
    atomic_fetch_add_explicit(&pool->job, 1, memory_order_release);
    futex_wake(&pool->job);
    for (int i = 0; i < pool->num_started; i++)
        pthread_join(pool->threads[i], NULL);
    free(pool);
}
