/* See row.h.  Passes over the row's memory: one for greedy and for any top_k that is small against
 * the vocabulary; one more for the total weight (temperature alone, top_p without top_k), less the
 * chunks that weigh nothing; one more for log-probabilities.  Everything else works on block maxima
 * (V / 64) or on candidates. */
#include "hybridgen/sampling/row.h"

#include <float.h>

#include "hybridgen/sampling/candidates.h"
#include "hybridgen/sampling/draw.h"
#include "hybridgen/sampling/masks.h"
#include "hybridgen/sampling/penalties.h"
#include "hybridgen/sampling/philox.h"
#include "hybridgen/sampling/select.h"

#define THRESHOLD_SLACK 1e-3 /* nats; far above what float32 loses between weight and logit */
#define HALF_GRID 0x1p-35    /* what rounding to a multiple of 2^-34 can add to a weight */

/* Block maxima of the whole row into the scratch; nonzero if there is a NaN in it. */
static int scan_all(const struct hg_view *v) {
    float *block_max = v->scratch->block_max;
    size_t whole = v->vocab / HG_CHUNK;
    int is_bad = whole ? v->lanes->scan(v->row, whole, block_max) : 0;
    if (whole < v->num_chunks)
        is_bad |= v->lanes->scan(v->scratch->tail, 1, block_max + whole * HG_BLOCKS_PER_CHUNK);
    return is_bad;
}

static float larger(float a, float b) { return a > b ? a : b; }

/* Sum of the weights of chunk `c`, by the least work that its largest logit allows. */
static double sum_chunk(const struct hg_view *v, size_t c, float top, float scale) {
    const float *most = v->scratch->block_max + c * HG_BLOCKS_PER_CHUNK;
    float y = (larger(larger(most[0], most[1]), larger(most[2], most[3])) - top) * scale;
    if (y < HG_WEIGHTLESS_BELOW)
        return 0.0;
    if (y < HG_LIGHT_BELOW)
        return v->lanes->light_sum(hg_chunk(v, c), top, scale);
    return v->lanes->chunk_sum(hg_chunk(v, c), top, scale);
}

/* Sum every chunk's weights into the scratch; returns the total, at least 1. */
static double sum_all(const struct hg_view *v, float top, float scale) {
    double total = 0.0;
    for (size_t c = 0; c < v->num_chunks; c++) {
        v->scratch->sum[c] = sum_chunk(v, c, top, scale);
        total += v->scratch->sum[c];
    }
    return total;
}

double hg_total_weight(const struct hg_lanes *lanes, struct hg_scratch *scratch, const float *row,
                       size_t vocab, double temperature) {
    struct hg_view v = hg_view_make(lanes, scratch, row, vocab);
    scan_all(&v);
    return sum_all(&v, lanes->max(scratch->block_max, v.num_blocks), hg_scale_of(temperature));
}

/* How many adjusted logits reach the threshold. */
static size_t count_reaching(const struct hg_view *v, float threshold) {
    const struct hg_scratch *s = v->scratch;
    size_t whole = v->vocab / HG_CHUNK * HG_CHUNK;
    size_t found = whole ? v->lanes->count_ge(v->row, whole, threshold) : 0;
    if (whole < v->vocab)
        found += v->lanes->count_ge(s->tail, HG_CHUNK, threshold);
    for (size_t i = 0; i < v->num_touched; i++) {
        found += s->adjusted[i] >= threshold;
        found -= s->original[i] >= threshold;
    }
    return found;
}

/* A threshold that at least `k` logits reach, and few more do where that is cheap to have.
 * Each block's maximum is one logit: when k maxima reach it, so do k logits.  With k too large for
 * that the logits themselves are counted. */
static float threshold_for(const struct hg_view *v, float top, size_t k) {
    int use_blocks = k <= v->num_chunks * HG_BLOCKS_PER_CHUNK / 4;
    uint32_t low = hg_ordered(-FLT_MAX), high = hg_ordered(top);
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        float threshold = hg_unordered(middle);
        size_t found = use_blocks
                           ? v->lanes->count_ge(v->scratch->block_max, v->num_blocks, threshold)
                           : count_reaching(v, threshold);
        if (found < k) {
            high = middle - 1;
            continue;
        }
        low = middle;
        if (found <= k + k / 8)
            break;
    }
    return hg_unordered(low);
}

/* Temperature alone. */
static int32_t draw_from_all(const struct hg_view *v, float top, float scale, double uniform) {
    struct hg_scratch *s = v->scratch;
    double target = uniform * sum_all(v, top, scale), before = 0.0;
    size_t c = hg_draw_chunk(s, v->num_chunks, target, &before);
    v->lanes->weights(hg_chunk(v, c), HG_CHUNK, top, scale, s->weight);
    return (int32_t)(c * HG_CHUNK + hg_draw_in_chunk(s->weight, before, target));
}

/* A logit that every token with weight that top_p and min_p keep reaches.  A token of weight below
 * (1 - top_p) * total / V cannot be kept by top_p: it and all lighter ones weigh less than what
 * top_p leaves out.  Weights up to half a grid step are 0. */
static float threshold_by_weight(const struct hg_view *v, const struct hg_sampling *p, float top,
                                 double total) {
    double floor_weight = 0.0;
    if (p->top_p < 1.0f)
        floor_weight = (1.0 - (double)p->top_p) * total / (double)v->vocab;
    if ((double)p->min_p > floor_weight)
        floor_weight = (double)p->min_p;
    floor_weight = floor_weight > 2 * HALF_GRID ? floor_weight - HALF_GRID : HALF_GRID;
    double reach = (double)p->temperature * (log(floor_weight) - THRESHOLD_SLACK);
    float threshold = nextafterf((float)((double)top + reach), -INFINITY);
    return threshold > -FLT_MAX ? threshold : -FLT_MAX;
}

static int32_t draw_from_kept(const struct hg_view *v, const struct hg_sampling *p, float top,
                              float scale, double uniform) {
    size_t k = hg_top_k(p, v->vocab);
    double total = !k && p->top_p < 1.0f ? sum_all(v, top, scale) : 0.0;
    float threshold = k ? threshold_for(v, top, k) : threshold_by_weight(v, p, top, total);
    size_t count = hg_gather(v, threshold);
    return hg_draw_kept(v, p, count, threshold, top, scale, total, uniform);
}

/* The lowest id whose logit is the top one. */
static int32_t first_of_top(const struct hg_view *v, float top) {
    for (size_t first = 0; first < v->num_blocks; first += 64) {
        uint64_t mask = v->lanes->mask_ge(v->scratch->block_max + first, top);
        if (!mask)
            continue;
        size_t b = first + (size_t)__builtin_ctzll(mask);
        mask = v->lanes->mask_ge(hg_block(v, b), top);
        if (mask)
            return (int32_t)(b * HG_BLOCK + (size_t)__builtin_ctzll(mask));
    }
    return -1; /* the top is one of the block maxima, unless the row was damaged meanwhile */
}

/* Log-probability of a finite logit; finite even where float32 cannot reach it. */
static float logprob_of(float logit, float top, double log_total) {
    double logprob = (double)logit - (double)top - log_total;
    return logprob < -(double)FLT_MAX ? -FLT_MAX : (float)logprob;
}

/* The best ids by original logit, best first. */
static void list_top(const struct hg_view *v, float top, size_t wanted, double log_total,
                     struct hg_choice *choice) {
    struct hg_scratch *s = v->scratch;
    float threshold = threshold_for(v, top, wanted);
    size_t num_found = hg_gather(v, threshold), count = 0;
    uint64_t last = num_found <= wanted
                        ? 0
                        : hg_last_kept(v, num_found, threshold, top, 0, (double)wanted);
    uint64_t sorted[HG_MAX_LOGPROBS];
    for (size_t i = 0; i < num_found && count < wanted; i++) {
        uint64_t key = hg_key(s->value[i], s->id[i]);
        if (key < last)
            continue;
        size_t at = count++;
        for (; at > 0 && sorted[at - 1] < key; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = key;
    }
    for (size_t i = 0; i < count; i++) {
        int32_t id = (int32_t)~(uint32_t)sorted[i];
        choice->top[i] = (struct hg_bias){id, logprob_of(v->row[id], top, log_total)};
    }
    choice->num_top = (uint32_t)count;
}

/* Bias, penalties, bans; then one id.  -1 when no finite logit is left. */
static int32_t choose(struct hg_view *v, const struct hg_sampling *p, const int32_t *history,
                      size_t prompt_len, size_t position) {
    hg_adjust(v, p, history, prompt_len, position);
    int32_t id = -1;
    float top = v->lanes->max(v->scratch->block_max, v->num_blocks);
    if (top == -INFINITY) {
        id = -1;
    } else if (p->temperature < HG_MIN_TEMPERATURE) {
        id = first_of_top(v, top);
    } else {
        float scale = hg_scale_of((double)p->temperature);
        double uniform = hg_uniform(p->seed, position);
        int is_cut = hg_top_k(p, v->vocab) || p->top_p < 1.0f || p->min_p > 0.0f;
        id = is_cut ? draw_from_kept(v, p, top, scale, uniform)
                    : draw_from_all(v, top, scale, uniform);
    }
    hg_adjust_undo(v);
    return id;
}

/* As choose, among the ids that the mask allows. */
static int32_t choose_allowed(const struct hg_view *plain, const struct hg_sampling *p,
                              const uint64_t *mask, const int32_t *history, size_t prompt_len,
                              size_t position) {
    hg_mask_row(mask, plain->row, plain->vocab, plain->scratch->masked);
    struct hg_view v =
        hg_view_make(plain->lanes, plain->scratch, plain->scratch->masked, plain->vocab);
    scan_all(&v);
    int32_t id = choose(&v, p, history, prompt_len, position);
    if (id >= 0 || p->min_tokens <= 0)
        return id;
    struct hg_sampling complete = *p;
    complete.min_tokens = 0;
    scan_all(&v);
    return choose(&v, &complete, history, prompt_len, position);
}

enum hg_row_error hg_sample_row(const struct hg_lanes *lanes, struct hg_scratch *scratch,
                                const float *row, size_t vocab, const struct hg_sampling *params,
                                const uint64_t *mask, const int32_t *history, size_t prompt_len,
                                size_t position, struct hg_choice *choice) {
    struct hg_view v = hg_view_make(lanes, scratch, row, vocab);
    *choice = (struct hg_choice){.token_id = -1, .logprob = NAN};
    int is_bad = scan_all(&v);
    float top = lanes->max(scratch->block_max, v.num_blocks);
    if (is_bad || top == INFINITY || top == -INFINITY)
        return HG_ROW_INVALID_LOGITS;
    double log_total = 0.0;
    if (params->num_logprobs >= 0) {
        int32_t most = params->num_logprobs > HG_MAX_LOGPROBS ? HG_MAX_LOGPROBS
                                                              : params->num_logprobs;
        log_total = log(sum_all(&v, top, hg_scale_of(1.0)));
        if (most > 0)
            list_top(&v, top, (size_t)most, log_total, choice);
    }
    int32_t id = mask ? choose_allowed(&v, params, mask, history, prompt_len, position)
                      : choose(&v, params, history, prompt_len, position);
    /* Parameters and row lie in shared memory: whatever was done to them, an id is one. */
    if (id < 0 || (size_t)id >= vocab)
        return HG_ROW_INVALID_LOGITS;
    choice->token_id = id;
    if (params->num_logprobs >= 0)
        choice->logprob = logprob_of(row[id], top, log_total);
    return HG_ROW_OK;
}
