/* Experts, phase by phase: shares, groups, inputs, gated products, products, sums. */
#include "hybridgen/models/experts.h"

#include <math.h>
#include <string.h>

#define SUM_COLUMNS 512 /* columns that one thread adds up: a batch of one keeps all busy */

/* Softmax in float64 over all experts; the greatest shares, of equal ones the first. What is not a
 * number makes all shares so, and with them the token's output: its request ends in an error. */
static void choose(const struct hg_experts *e, int64_t token)
{
    float *logits = e->logits + token * e->logits_stride;
    float *shares = e->shares + token * e->num_chosen;
    int32_t *chosen = e->chosen + token * e->num_chosen;
    float top = -INFINITY;
    for (int64_t i = 0; i < e->num_experts; i++)
        top = logits[i] > top ? logits[i] : top;
    double total = 0, taken = 0;
    for (int64_t i = 0; i < e->num_experts; i++)
        total += exp((double)logits[i] - top);
    for (int64_t rank = 0; rank < e->num_chosen; rank++) {
        int32_t best = 0;
        for (int32_t i = 1; i < e->num_experts; i++)
            if (logits[i] > logits[best] || isnan(logits[best]))
                best = i;
        double share = exp((double)logits[best] - top) / total;
        chosen[rank] = best;
        shares[rank] = (float)share;
        taken += share;
        logits[best] = -INFINITY;
    }
    if (e->is_share_normalized)
        for (int64_t rank = 0; rank < e->num_chosen; rank++)
            shares[rank] = (float)(shares[rank] / taken);
}

/* Counting sort of the choices by expert. */
static void group(const struct hg_experts *e, int64_t num_choices)
{
    memset(e->ends, 0, (size_t)e->num_experts * sizeof *e->ends);
    for (int64_t i = 0; i < num_choices; i++)
        e->ends[e->chosen[i]]++;
    int32_t begin = 0, num_active = 0;
    for (int32_t i = 0; i < e->num_experts; i++) {
        int32_t count = e->ends[i];
        if (count)
            e->active[++num_active] = i;
        e->ends[i] = begin; /* grows to the end while choices are placed */
        begin += count;
    }
    e->active[0] = num_active;
    for (int64_t i = 0; i < num_choices; i++)
        e->places[i] = e->ends[e->chosen[i]]++;
}

static void gather(const struct hg_mixture *op, int64_t choice)
{
    const struct hg_experts *e = op->experts;
    const float *from = op->x + choice / e->num_chosen * op->x_stride;
    float *to = e->rows + e->places[choice] * e->rows_stride;
    memcpy(to, from, (size_t)e->hidden_size * sizeof *to);
}

/* One of the two products of an expert over its group. */
static struct hg_linear expert_product(const struct hg_experts *e, int32_t expert, int is_gated)
{
    int64_t begin = expert ? e->ends[expert - 1] : 0;
    float *rows = e->rows + begin * e->rows_stride, *inner = e->inner + begin * e->inner_stride;
    const char *panels = is_gated ? e->gate_up : e->down;
    int64_t expert_bytes = is_gated ? e->gate_up_bytes : e->down_bytes;
    return (struct hg_linear){
        .panels = panels + expert * expert_bytes,
        .x = is_gated ? rows : inner,
        .y = is_gated ? inner : rows,
        .x_stride = is_gated ? e->rows_stride : e->inner_stride,
        .y_stride = is_gated ? e->inner_stride : e->rows_stride,
        .num_rows = e->ends[expert] - begin,
        .num_outputs = is_gated ? e->size : e->hidden_size,
        .depth = is_gated ? e->hidden_size : e->size,
        .dtype = e->dtype,
        .epilogue = is_gated ? e->gate : HG_STORE,
    };
}

static struct hg_linear shared_product(const struct hg_mixture *op, int is_gated)
{
    const struct hg_experts *e = op->experts;
    float *out = e->rows + op->num_rows * e->num_chosen * e->rows_stride;
    return (struct hg_linear){
        .panels = is_gated ? e->shared_gate_up : e->shared_down,
        .x = is_gated ? op->x : e->shared_inner,
        .y = is_gated ? e->shared_inner : out,
        .x_stride = is_gated ? op->x_stride : e->shared_inner_stride,
        .y_stride = is_gated ? e->shared_inner_stride : e->rows_stride,
        .num_rows = op->num_rows,
        .num_outputs = is_gated ? e->shared_size : e->hidden_size,
        .depth = is_gated ? e->hidden_size : e->shared_size,
        .dtype = e->dtype,
        .epilogue = is_gated ? e->gate : HG_STORE,
    };
}

static int64_t count_panels(int64_t num_outputs, int is_gated)
{
    int64_t width = is_gated ? HG_HALF : HG_PANEL;
    return (num_outputs + width - 1) / width;
}

/* The panels of all experts that have a group, then the shared expert's. */
static void multiply(struct hg_pool *pool, const struct hg_mixture *op, int is_gated)
{
    const struct hg_experts *e = op->experts;
    int64_t per_expert = count_panels(is_gated ? e->size : e->hidden_size, is_gated);
    int64_t num_grouped = e->active[0] * per_expert, num_items = num_grouped;
    if (e->shared_size)
        num_items += count_panels(is_gated ? e->shared_size : e->hidden_size, is_gated);
    int64_t item = hg_claim(pool);
    for (int64_t next; item < num_items; item = next) {
        next = hg_claim(pool);
        if (item >= num_grouped) {
            struct hg_linear product = shared_product(op, is_gated);
            int64_t ahead = next < num_items ? next - num_grouped : -1;
            hg_linear_panel(&product, item - num_grouped, ahead);
        } else {
            int64_t group = item / per_expert, ahead = -1;
            struct hg_linear product = expert_product(e, e->active[1 + group], is_gated);
            /* The next panel may be a later expert's, so much further behind this one's. */
            if (next < num_grouped)
                ahead = (e->active[1 + next / per_expert] - e->active[1 + group]) * per_expert +
                        next % per_expert;
            hg_linear_panel(&product, item % per_expert, ahead);
        }
    }
}

static void add_row(float *sums, float share, const float *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        sums[i] += share * row[i];
}

static void add_up(const struct hg_mixture *op, int64_t token, int64_t first)
{
    const struct hg_experts *e = op->experts;
    int64_t left = e->hidden_size - first;
    int64_t count = left < SUM_COLUMNS ? left : SUM_COLUMNS;
    const float *rows = e->rows + first;
    float sums[SUM_COLUMNS] = {0};
    for (int64_t rank = 0; rank < e->num_chosen; rank++) {
        int64_t choice = token * e->num_chosen + rank;
        add_row(sums, e->shares[choice], rows + e->places[choice] * e->rows_stride, count);
    }
    if (e->shared_size) {
        double gate = e->logits[token * e->logits_stride + e->num_experts];
        int64_t row = op->num_rows * e->num_chosen + token;
        add_row(sums, (float)(1 / (1 + exp(-gate))), rows + row * e->rows_stride, count);
    }
    float *y = op->y + token * op->y_stride + first;
    for (int64_t i = 0; i < count; i++)
        y[i] = op->is_added ? y[i] + sums[i] : sums[i];
}

void hg_mix(struct hg_pool *pool, int thread, const struct hg_mixture *op)
{
    const struct hg_experts *e = op->experts;
    int64_t num_choices = op->num_rows * e->num_chosen;
    struct hg_linear router = {
        .panels = e->router,
        .x = op->x,
        .y = e->logits,
        .x_stride = op->x_stride,
        .y_stride = e->logits_stride,
        .num_rows = op->num_rows,
        .num_outputs = e->num_experts + (e->shared_size > 0),
        .depth = e->hidden_size,
        .dtype = e->dtype,
        .epilogue = HG_STORE,
    };
    hg_linear_phase(pool, &router);
    hg_barrier(pool);
    for (int64_t token; (token = hg_claim(pool)) < op->num_rows;)
        choose(e, token);
    hg_barrier(pool);
    if (thread == 0)
        group(e, num_choices);
    hg_barrier(pool);
    for (int64_t choice; (choice = hg_claim(pool)) < num_choices;)
        gather(op, choice);
    hg_barrier(pool);
    multiply(pool, op, 1);
    hg_barrier(pool);
    multiply(pool, op, 0);
    hg_barrier(pool);
    int64_t num_parts = (e->hidden_size + SUM_COLUMNS - 1) / SUM_COLUMNS;
    for (int64_t item; (item = hg_claim(pool)) < op->num_rows * num_parts;)
        add_up(op, item / num_parts, item % num_parts * SUM_COLUMNS);
    hg_barrier(pool);
}
