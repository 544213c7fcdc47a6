/* Waiting on a word: spin first, then sleep; for native code with and without Python. */
#ifndef HYBRIDGEN_WAIT_H
#define HYBRIDGEN_WAIT_H

#include <stdint.h>
#include <time.h>

#include "ipc/words.h"

#if defined(__x86_64__) || defined(__i386__)
#define HG_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define HG_PAUSE() __asm__ __volatile__("yield")
#else
#define HG_PAUSE() __asm__ __volatile__("")
#endif

static inline int64_t hg_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sleeps until the word is woken, differs from `expected`, or timeout_ns passed.
 *
 * The futex is the shared kind (not FUTEX_PRIVATE), on the half of the word that holds its low 32
 * bits.  A value that differs only in the high half would be missed by the kernel's comparison,
 * never by ours, and our own comes first; step counters need 2^32 steps between two looks for
 * it. */
static inline int hg_futex_wait(uint64_t *word, uint64_t expected, int64_t timeout_ns) {
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    return (int)syscall(SYS_futex, hg_low_half(word), FUTEX_WAIT, (uint32_t)expected, &timeout,
                        NULL, 0);
}

/* Spins, then sleeps, until the word differs from `expected`.  Returns it as soon as it does; else
 * what it is after a wake-up, the time limit or a signal, whichever comes first. */
static inline uint64_t hg_wait(uint64_t *word, uint64_t expected, int64_t spin_ns,
                               int64_t timeout_ns) {
    uint64_t value = hg_load(word);
    if (value != expected || timeout_ns <= 0)
        return value;
    const int64_t start = hg_now_ns();
    const int64_t spin_end = start + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
    for (unsigned turn = 0; spin_ns > 0; turn++) {
        value = hg_load(word);
        if (value != expected)
            return value;
        HG_PAUSE();
        if (turn % 32 == 31 && hg_now_ns() >= spin_end)
            break;
    }
    const int64_t left_ns = start + timeout_ns - hg_now_ns();
    if (left_ns > 0)
        hg_futex_wait(word, expected, left_ns); /* every outcome ends in a fresh look */
    return hg_load(word);
}

#endif
