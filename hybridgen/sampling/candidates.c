/* See candidates.h. */
#include "hybridgen/sampling/candidates.h"

#include "hybridgen/sampling/select.h"

/* So few left are quicker found by a histogram than by bisecting on, which goes over all `count`
 * candidates once more every time. */
static size_t few_of(size_t count) { return count > 1024 ? 1024 : 48; }

static size_t whole_chunks(size_t count) { return (count + HG_CHUNK - 1) / HG_CHUNK; }

static void pad(struct hg_scratch *s, size_t count) {
    for (size_t i = count; i < whole_chunks(count) * HG_CHUNK; i++)
        s->value[i] = -INFINITY;
}

size_t hg_gather(const struct hg_view *v, float threshold) {
    struct hg_scratch *s = v->scratch;
    size_t count = 0;
    for (size_t first = 0; first < v->num_blocks; first += 64)
        for (uint64_t mask = v->lanes->mask_ge(s->block_max + first, threshold); mask;
             mask &= mask - 1) {
            size_t b = first + (size_t)__builtin_ctzll(mask);
            count += v->lanes->gather(hg_block(v, b), (int32_t)(b * HG_BLOCK), threshold,
                                      s->value + count, s->id + count);
        }
    pad(s, count);
    return count;
}

void hg_take_candidates(struct hg_scratch *s, const float *value, const int32_t *id,
                        size_t count) {
    memcpy(s->value, value, count * sizeof *value);
    memcpy(s->id, id, count * sizeof *id);
    pad(s, count);
}

static double sum_reaching(const struct hg_view *v, size_t count, float threshold) {
    const struct hg_scratch *s = v->scratch;
    double sum = 0.0;
    for (size_t i = 0; i < count; i += HG_CHUNK)
        sum += v->lanes->sum_ge(s->value + i, s->weight + i, threshold);
    return sum;
}

/* Copy key and weight of the candidates in [low, high); returns how many. */
static size_t collect(const struct hg_view *v, size_t count, float low, float high) {
    struct hg_scratch *s = v->scratch;
    size_t found = 0;
    for (size_t first = 0; first < count; first += HG_BLOCK) {
        uint64_t mask = v->lanes->mask_ge(s->value + first, low) &
                        ~v->lanes->mask_ge(s->value + first, high);
        for (; mask; mask &= mask - 1) {
            size_t i = first + (size_t)__builtin_ctzll(mask);
            s->key[found] = hg_key(s->value[i], s->id[i]);
            s->part_weight[found++] = s->weight[i];
        }
    }
    return found;
}

uint64_t hg_last_kept(const struct hg_view *v, size_t count, float low, float top, int is_weighted,
                      double limit) {
    struct hg_scratch *s = v->scratch;
    size_t padded = whole_chunks(count) * HG_CHUNK;
    float high = INFINITY;
    double above = 0.0; /* number or weight of those >= high */
    for (size_t left = count; left > few_of(count); left /= 2) {
        float middle = 0.5f * low + 0.5f * (high < top ? high : top);
        if (!(middle > low && middle < high))
            break;
        double sum = is_weighted ? sum_reaching(v, count, middle)
                                 : (double)v->lanes->count_ge(s->value, padded, middle);
        if (sum >= limit) {
            low = middle;
        } else {
            high = middle;
            above = sum;
        }
    }
    size_t found = collect(v, count, low, high);
    if (!found) /* all candidates together weigh less than the limit: min_p left some out */
        return hg_key(low, INT32_MAX);
    return hg_cut(s->key, is_weighted ? s->part_weight : NULL, found, above, limit);
}

void hg_drop_below(struct hg_scratch *s, size_t count, uint64_t last_kept) {
    float value = hg_unordered((uint32_t)(last_kept >> 32));
    int32_t id = (int32_t)~(uint32_t)last_kept;
    for (size_t i = 0; i < count; i++) {
        int is_kept = (s->value[i] > value) | ((s->value[i] == value) & (s->id[i] <= id));
        s->weight[i] = is_kept ? s->weight[i] : 0.0f;
    }
}

double hg_sum_candidates(const struct hg_view *v, size_t count) {
    struct hg_scratch *s = v->scratch;
    double total = 0.0;
    for (size_t c = 0; c < whole_chunks(count); c++) {
        s->sum[c] = v->lanes->sum_ge(s->value + c * HG_CHUNK, s->weight + c * HG_CHUNK, -INFINITY);
        total += s->sum[c];
    }
    return total;
}
