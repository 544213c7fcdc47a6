/* Philox4x32-10, the counter-based random number generator.
 *
 * J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2,
 * 3", SC'11.  Key = seed, counter = absolute position, so that a draw needs no generator state and
 * any sampler can repeat it. */
#ifndef HYBRIDGEN_SAMPLING_PHILOX_H
#define HYBRIDGEN_SAMPLING_PHILOX_H

#include <stdint.h>

static inline void hg_philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = 0xd2511f53ull * counter[0], b = 0xcd9e8d57ull * counter[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ counter[1] ^ key0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ counter[3] ^ key1, (uint32_t)a};
        for (int i = 0; i < 4; i++)
            counter[i] = next[i];
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
}

/* Uniform in [0, 1): the upper 53 bits of the first two words, first word on top. */
static inline double hg_uniform(uint64_t seed, uint64_t position) {
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    hg_philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    uint64_t word = (uint64_t)counter[0] << 32 | counter[1];
    return (double)(word >> 11) * 0x1p-53;
}

#endif
