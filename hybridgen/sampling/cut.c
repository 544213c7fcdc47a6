/* See cut.h. */
#include "hybridgen/sampling/cut.h"

#include "hybridgen/sampling/candidates.h"
#include "hybridgen/sampling/draw.h"
#include "hybridgen/sampling/philox.h"
#include "hybridgen/sampling/row.h"

/* A logit below another weighs at most this much more: what float32 loses in the polynomial, and
 * one step of the grid that weights are rounded to. */
#define WEIGHT_SLACK 1e-5
#define WEIGHT_GRID 0x1p-34

struct candidates {
    const float *value;
    const int32_t *id;
    size_t count;
};

static int needs_row(const struct hg_sampling *p, size_t num_generated) {
    int is_banning = p->min_tokens > 0 && num_generated < (size_t)p->min_tokens;
    return is_banning || p->grammar_kind || p->num_logprobs >= 0 || p->num_bias > 0 ||
           p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

/* The lowest id with the top logit; -1 when there is none, or when the candidates are not what
 * layout.h says they are: nothing is believed that a device, or whoever damaged its memory, says. */
static int32_t first_of_top(const struct hg_cut *cut, const struct candidates *c, size_t vocab) {
    int32_t first = -1, last = -1;
    int is_sound = cut->top < INFINITY && cut->threshold > -INFINITY;
    for (size_t i = 0; i < c->count; i++) {
        int32_t id = c->id[i];
        is_sound &= id > last && (size_t)id < vocab && c->value[i] >= cut->threshold &&
                    c->value[i] <= cut->top;
        first = first < 0 && c->value[i] == cut->top ? id : first;
        last = id;
    }
    return is_sound ? first : -1;
}

/* Nothing below the threshold is kept by min_p. */
static int is_rest_dropped(const struct hg_view *v, const struct hg_cut *cut, float min_p) {
    float value[HG_LANES], weight[HG_LANES];
    for (size_t i = 0; i < HG_LANES; i++)
        value[i] = cut->threshold;
    v->lanes->weights(value, HG_LANES, cut->top, cut->scale, weight);
    return (double)min_p > (double)weight[0] * (1.0 + WEIGHT_SLACK) + WEIGHT_GRID;
}

/* Is every token among the candidates (in the scratch) that the parameters keep? */
static int holds_all_kept(const struct hg_view *v, const struct hg_cut *cut,
                          const struct hg_sampling *p, size_t count) {
    size_t k = hg_top_k(p, v->vocab);
    if (k)
        return count >= k;
    if (is_rest_dropped(v, cut, p->min_p))
        return 1;
    struct hg_scratch *s = v->scratch;
    size_t padded = (count + HG_CHUNK - 1) / HG_CHUNK * HG_CHUNK;
    v->lanes->weights(s->value, padded, cut->top, cut->scale, s->weight);
    double share = p->top_p < 1.0f ? (double)p->top_p : 1.0;
    return hg_sum_candidates(v, count) >= share * cut->total;
}

/* Choose among the candidates, which lie in the scratch. */
static int32_t choose_candidate(const struct hg_lanes *lanes, struct hg_scratch *scratch,
                                const struct hg_cut *cut, size_t vocab,
                                const struct hg_sampling *p, float scale, size_t position) {
    struct candidates c = {scratch->value, scratch->id, cut->count};
    int32_t first = first_of_top(cut, &c, vocab);
    if (first < 0)
        return HG_CUT_UNSURE;
    if (scale == 0.0f)
        return first;
    struct hg_view v = {.lanes = lanes, .scratch = scratch, .vocab = vocab};
    /* The top logit alone weighs 1. */
    if (!(cut->total >= 1.0) || !holds_all_kept(&v, cut, p, c.count))
        return HG_CUT_UNSURE;
    return hg_draw_kept(&v, p, c.count, cut->threshold, cut->top, scale, cut->total,
                        hg_uniform(p->seed, position));
}

int32_t hg_cut_choose(const struct hg_lanes *lanes, struct hg_scratch *scratch,
                      const struct hg_cut *shared, size_t capacity, uint64_t step, size_t vocab,
                      const struct hg_sampling *p, size_t prompt_len, size_t position,
                      int has_token) {
    const struct hg_cut cut = *shared; /* what was checked once cannot change any more */
    int is_answer = cut.step == step && !needs_row(p, position - prompt_len);
    if (has_token) /* its whole row may never come */
        return is_answer && cut.state == HG_CUT_TOKEN && (size_t)(uint32_t)cut.token_id < vocab
                   ? cut.token_id
                   : HG_CUT_INVALID;
    if (!is_answer)
        return HG_CUT_UNSURE;
    int is_greedy = p->temperature < HG_MIN_TEMPERATURE;
    float scale = is_greedy ? 0.0f : hg_scale_of((double)p->temperature);
    int has_candidates = cut.state == HG_CUT_CANDIDATES || cut.state == HG_CUT_TOKEN;
    if (!has_candidates || cut.scale != scale || cut.count > capacity || cut.count > vocab)
        return HG_CUT_UNSURE;
    const float *value = (const float *)(shared + 1);
    hg_take_candidates(scratch, value, (const int32_t *)(value + capacity), cut.count);
    int32_t id = choose_candidate(lanes, scratch, &cut, vocab, p, scale, position);
    return id < 0 || (size_t)id < vocab ? id : HG_CUT_UNSURE;
}
