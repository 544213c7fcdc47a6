/* Weighted selection by repeated histograms over an ever smaller range of keys. */
#include "hybridgen/sampling/select.h"

#include <string.h>

#define SMALL 24u
#define MAX_BINS 2048u

struct part {
    uint64_t *key;
    float *weight; /* NULL: one each */
    size_t count;
};

static inline double weight_at(const struct part *p, size_t i) {
    return p->weight ? (double)p->weight[i] : 1.0;
}

/* Few candidates: sort them and walk down. */
static uint64_t walk(const struct part *p, double sum, double limit) {
    uint64_t key[SMALL];
    double weight[SMALL];
    for (size_t i = 0; i < p->count; i++) {
        size_t at = i;
        for (; at > 0 && key[at - 1] < p->key[i]; at--) {
            key[at] = key[at - 1];
            weight[at] = weight[at - 1];
        }
        key[at] = p->key[i];
        weight[at] = weight_at(p, i);
    }
    for (size_t i = 0; i + 1 < p->count; i++) {
        sum += weight[i];
        if (sum >= limit)
            return key[i];
    }
    return key[p->count - 1];
}

/* The bin in which the running sum, from the top bin down, reaches the limit; `sum` becomes the
 * weight above it.  When nothing reaches it, the lowest bin that holds a candidate. */
static size_t crossing_bin(const double *bin_weight, const uint32_t *bin_count, size_t num_bins,
                           double *sum, double limit) {
    size_t lowest = 0;
    double lowest_sum = *sum;
    for (size_t b = num_bins; b-- > 0;) {
        if (!bin_count[b])
            continue;
        lowest = b;
        lowest_sum = *sum;
        if (*sum + bin_weight[b] >= limit)
            return b;
        *sum += bin_weight[b];
    }
    *sum = lowest_sum;
    return lowest;
}

/* Keep only the candidates of the bin in which the sum crosses the limit. */
static double narrow(struct part *p, double sum, double limit) {
    double bin_weight[MAX_BINS];
    uint32_t bin_count[MAX_BINS];
    uint64_t low = p->key[0], high = p->key[0];
    for (size_t i = 1; i < p->count; i++) {
        low = p->key[i] < low ? p->key[i] : low;
        high = p->key[i] > high ? p->key[i] : high;
    }
    size_t num_bins = p->count < 2048 ? 256 : MAX_BINS;
    int shift = 0;
    while ((high - low) >> shift >= num_bins)
        shift++;
    memset(bin_weight, 0, num_bins * sizeof *bin_weight);
    memset(bin_count, 0, num_bins * sizeof *bin_count);
    for (size_t i = 0; i < p->count; i++) {
        size_t b = (size_t)((p->key[i] - low) >> shift);
        bin_weight[b] += weight_at(p, i);
        bin_count[b]++;
    }
    size_t crossing = crossing_bin(bin_weight, bin_count, num_bins, &sum, limit), kept = 0;
    for (size_t i = 0; i < p->count; i++) {
        if ((size_t)((p->key[i] - low) >> shift) != crossing)
            continue;
        if (p->weight)
            p->weight[kept] = p->weight[i];
        p->key[kept++] = p->key[i];
    }
    p->count = kept;
    return sum;
}

uint64_t hg_cut(uint64_t *key, float *weight, size_t count, double sum, double limit) {
    struct part p = {key, weight, count};
    while (p.count > SMALL)
        sum = narrow(&p, sum, limit);
    return walk(&p, sum, limit);
}
