/* See penalties.h.  Touched ids are bits of a bitmap with one word per block; the number of bits
 * before an id is its rank, the index of everything else known about it.  So the work is linear in
 * the history plus one step per block, and a block's adjusted logits lie side by side. */
#include "hybridgen/sampling/penalties.h"

#include <float.h>

static inline void mark(uint64_t *bitmap, size_t vocab, int32_t id) {
    if ((size_t)(uint32_t)id < vocab)
        bitmap[(uint32_t)id / 64] |= 1ull << ((uint32_t)id % 64);
}

/* Bits set, without a call: the baseline of x86-64 has no instruction for it. */
static inline uint32_t num_bits(uint64_t x) {
    x -= x >> 1 & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full;
    return (uint32_t)(x * 0x0101010101010101ull >> 56);
}

static inline size_t rank_of(const struct hg_scratch *s, int32_t id) {
    uint32_t bit = (uint32_t)id % 64, word = (uint32_t)id / 64;
    return s->rank[word] + num_bits(s->touched[word] & ((1ull << bit) - 1));
}

static size_t clamp_count(int32_t count, int32_t most) {
    return (size_t)(count < 0 ? 0 : count > most ? most : count);
}

static void mark_all(struct hg_view *v, const struct hg_sampling *p, const int32_t *history,
                     size_t prompt_len, size_t position) {
    struct hg_scratch *s = v->scratch;
    if (p->repetition_penalty != 1.0f)
        for (size_t i = 0; i < position; i++)
            mark(s->seen, v->vocab, history[i]);
    if (p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f)
        for (size_t i = prompt_len; i < position; i++)
            mark(s->touched, v->vocab, history[i]);
    for (size_t i = 0; i < clamp_count(p->num_bias, HG_MAX_BIAS); i++)
        mark(s->touched, v->vocab, p->bias[i].token_id);
    if (p->min_tokens <= 0 || position - prompt_len >= (size_t)p->min_tokens)
        return;
    for (size_t i = 0; i < clamp_count(p->num_eos_ids, HG_MAX_EOS_IDS); i++)
        mark(s->touched, v->vocab, p->eos_ids[i]);
    for (size_t i = 0; i < clamp_count(p->num_stop_ids, HG_MAX_STOP_IDS); i++)
        mark(s->touched, v->vocab, p->stop_ids[i]);
}

/* Number the touched ids; sets num_touched. */
static void rank_all(struct hg_view *v) {
    struct hg_scratch *s = v->scratch;
    uint32_t rank = 0;
    for (size_t b = 0; b < v->num_chunks * HG_BLOCKS_PER_CHUNK; b++) {
        s->rank[b] = rank;
        for (uint64_t word = s->touched[b] |= s->seen[b]; word; word &= word - 1)
            s->touched_id[rank++] = (int32_t)(b * 64 + (size_t)__builtin_ctzll(word));
    }
    v->num_touched = rank;
}

/* Collect each touched id's bias (-inf where it is banned) and occurrences. */
static void collect(struct hg_view *v, const struct hg_sampling *p, const int32_t *history,
                    size_t prompt_len, size_t position) {
    struct hg_scratch *s = v->scratch;
    memset(s->bias, 0, v->num_touched * sizeof *s->bias);
    memset(s->count, 0, v->num_touched * sizeof *s->count);
    if (p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f)
        for (size_t i = prompt_len; i < position; i++)
            if ((size_t)(uint32_t)history[i] < v->vocab)
                s->count[rank_of(s, history[i])]++;
    for (size_t i = 0; i < clamp_count(p->num_bias, HG_MAX_BIAS); i++)
        if ((size_t)(uint32_t)p->bias[i].token_id < v->vocab)
            s->bias[rank_of(s, p->bias[i].token_id)] = p->bias[i].value;
    if (p->min_tokens <= 0 || position - prompt_len >= (size_t)p->min_tokens)
        return;
    for (size_t i = 0; i < clamp_count(p->num_eos_ids, HG_MAX_EOS_IDS); i++)
        if ((size_t)(uint32_t)p->eos_ids[i] < v->vocab)
            s->bias[rank_of(s, p->eos_ids[i])] = -INFINITY;
    for (size_t i = 0; i < clamp_count(p->num_stop_ids, HG_MAX_STOP_IDS); i++)
        if ((size_t)(uint32_t)p->stop_ids[i] < v->vocab)
            s->bias[rank_of(s, p->stop_ids[i])] = -INFINITY;
}

static inline float adjust_one(float original, float bias, uint32_t count, int is_seen,
                               const struct hg_sampling *p) {
    float z = original + bias;
    if (z == -INFINITY)
        return z;
    if (is_seen)
        z = z > 0.0f ? z / p->repetition_penalty : z * p->repetition_penalty;
    if (count) {
        z = z - p->frequency_penalty * (float)count;
        z = z - p->presence_penalty;
    }
    return z > FLT_MAX ? FLT_MAX : z < -FLT_MAX ? -FLT_MAX : z;
}

static void adjust_block(struct hg_view *v, const struct hg_sampling *p, size_t b) {
    struct hg_scratch *s = v->scratch;
    float most = s->block_max[b], raised = -INFINITY;
    int is_most_touched = 0;
    size_t rank = s->rank[b];
    for (uint64_t word = s->touched[b]; word; word &= word - 1, rank++) {
        float original = v->row[s->touched_id[rank]];
        int is_seen = s->seen[b] >> ((uint32_t)s->touched_id[rank] % 64) & 1;
        float z = adjust_one(original, s->bias[rank], s->count[rank], is_seen, p);
        s->original[rank] = original;
        s->adjusted[rank] = z;
        is_most_touched |= original == most;
        raised = z > raised ? z : raised;
    }
    if (is_most_touched) {
        s->block_max[b] = v->lanes->max(hg_block(v, b), HG_BLOCK);
    } else if (raised > most) {
        s->block_max[b] = raised;
    }
}

void hg_adjust(struct hg_view *v, const struct hg_sampling *p, const int32_t *history,
               size_t prompt_len, size_t position) {
    mark_all(v, p, history, prompt_len, position);
    rank_all(v);
    if (!v->num_touched)
        return;
    collect(v, p, history, prompt_len, position);
    for (size_t rank = 0; rank < v->num_touched;) {
        size_t b = (size_t)v->scratch->touched_id[rank] / HG_BLOCK;
        adjust_block(v, p, b);
        rank += num_bits(v->scratch->touched[b]);
    }
}

void hg_adjust_undo(struct hg_view *v) {
    struct hg_scratch *s = v->scratch;
    for (size_t rank = 0; rank < v->num_touched; rank++) {
        size_t b = (size_t)s->touched_id[rank] / HG_BLOCK;
        s->touched[b] = s->seen[b] = 0;
    }
    v->num_touched = 0;
}
