/* See draw.h. */
#include "hybridgen/sampling/draw.h"

#include "hybridgen/sampling/candidates.h"

#define LOG2_E 1.4426950408889634

float hg_scale_of(double temperature) { return (float)(LOG2_E / temperature); }

size_t hg_top_k(const struct hg_sampling *p, size_t vocab) {
    return p->top_k > 0 && (size_t)p->top_k < vocab ? (size_t)p->top_k : 0;
}

size_t hg_draw_chunk(const struct hg_scratch *s, size_t num_chunks, double target,
                     double *before) {
    size_t chosen = 0;
    double sum = 0.0;
    for (size_t c = 0; c < num_chunks && sum <= target; c++) {
        if (s->sum[c] <= 0.0)
            continue;
        chosen = c;
        *before = sum;
        sum += s->sum[c];
    }
    return chosen;
}

size_t hg_draw_in_chunk(const float *weight, double before, double target) {
    size_t chosen = 0;
    double sum = before;
    for (size_t i = 0; i < HG_CHUNK && sum <= target; i++) {
        if (weight[i] <= 0.0f)
            continue;
        chosen = i;
        sum += (double)weight[i];
    }
    return chosen;
}

int32_t hg_draw_kept(const struct hg_view *v, const struct hg_sampling *p, size_t count,
                     float threshold, float top, float scale, double total, double uniform) {
    struct hg_scratch *s = v->scratch;
    size_t k = hg_top_k(p, v->vocab), num_chunks = (count + HG_CHUNK - 1) / HG_CHUNK;
    v->lanes->weights(s->value, num_chunks * HG_CHUNK, top, scale, s->weight);
    if (k && count > k)
        hg_drop_below(s, count, hg_last_kept(v, count, threshold, top, 0, (double)k));
    if (p->top_p < 1.0f) {
        double limit = (double)p->top_p * (k ? hg_sum_candidates(v, count) : total);
        hg_drop_below(s, count, hg_last_kept(v, count, threshold, top, 1, limit));
    }
    for (size_t i = 0; i < count; i++)
        s->weight[i] = s->weight[i] >= p->min_p ? s->weight[i] : 0.0f;
    double target = uniform * hg_sum_candidates(v, count), before = 0.0;
    size_t c = hg_draw_chunk(s, num_chunks, target, &before);
    return s->id[c * HG_CHUNK + hg_draw_in_chunk(s->weight + c * HG_CHUNK, before, target)];
}
