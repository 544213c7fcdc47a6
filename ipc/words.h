/* Words shared between processes: ordered loads and stores, and waking who sleeps on one. */
#ifndef HYBRIDGEN_WORDS_H
#define HYBRIDGEN_WORDS_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Also orders every earlier read before this one, so that reading a word a second time proves
 * that nothing read in between was being overwritten.  Free on x86. */
static inline uint64_t hg_load(const uint64_t *word) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Also orders this store before every later one, so that a word that takes a record back is seen
 * before the record changes.  Free on x86. */
static inline void hg_store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* The half of a word that futexes compare: its low 32 bits. */
static inline uint32_t *hg_low_half(uint64_t *word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (uint32_t *)word + 1;
#else
    return (uint32_t *)word;
#endif
}

/* Wakes at most `count` sleepers, in any process; returns how many, or -1 with errno. */
static inline int hg_futex_wake(uint64_t *word, int count) {
    return (int)syscall(SYS_futex, hg_low_half(word), FUTEX_WAKE, count, NULL, NULL, 0);
}

#endif
