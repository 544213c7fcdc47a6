/* Waiting on words, and bounds-checked access to them for the functions of the module. */
#ifndef HYBRIDGEN_ATOMICS_H
#define HYBRIDGEN_ATOMICS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

/* Sleeps until the word is woken, differs from `expected`, or timeout_ns passed. */
int hg_futex_wait(uint64_t *word, uint64_t expected, int64_t timeout_ns);

/* Spins, then sleeps, until the word differs from `expected`; see wait() in _native.c. */
uint64_t hg_wait(uint64_t *word, uint64_t expected, int64_t spin_ns, int64_t timeout_ns);

/* The word at `offset` of a buffer; NULL with ValueError when it is outside or not aligned.  The
 * caller releases `view` in every case but NULL. */
uint64_t *hg_word(PyObject *buffer, PyObject *offset, int is_writable, Py_buffer *view);

#endif
