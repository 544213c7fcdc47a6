/* The block, phase by phase, for all layers of one batch. */
#include "hybridgen/models/experts.h"
#include "hybridgen/models/ops.h"

#include <stddef.h>

struct run {
    struct hg_pool *pool;
    int thread;
    const struct hg_model *model;
    const struct hg_batch *batch;
};

static void gather(const struct run *run)
{
    const struct hg_model *m = run->model;
    struct hg_gather op = {
        .panels = m->embedding,
        .ids = run->batch->ids,
        .y = m->hidden,
        .y_stride = m->hidden_stride,
        .num_rows = run->batch->num_tokens,
        .depth = m->hidden_size,
        .dtype = m->dtype,
        .scale = m->embedding_scale,
    };
    hg_gather_phase(run->pool, &op);
    hg_barrier(run->pool);
}

/* From one of hidden and normed, from row `first` on, to the other. */
static void norm(const struct run *run, const float *weight, int64_t first, int is_added)
{
    const struct hg_model *m = run->model;
    struct hg_norm op = {
        .x = (is_added ? m->normed : m->hidden) + first * m->hidden_stride,
        .weight = weight,
        .y = is_added ? m->hidden : m->normed,
        .x_stride = m->hidden_stride,
        .y_stride = m->hidden_stride,
        .num_rows = run->batch->num_tokens - first,
        .size = m->hidden_size,
        .is_added = is_added,
        .epsilon = m->epsilon,
    };
    hg_norm_phase(run->pool, &op);
    hg_barrier(run->pool);
}

static void linear(const struct run *run, struct hg_linear op)
{
    op.dtype = run->model->dtype;
    hg_linear_phase(run->pool, &op);
    hg_barrier(run->pool);
}

/* Add a product to hidden, normed before where the model has norms there. */
static void add_linear(const struct run *run, struct hg_linear op, const float *post_norm)
{
    const struct hg_model *m = run->model;
    op.y = post_norm ? m->normed : m->hidden;
    op.y_stride = m->hidden_stride;
    op.num_outputs = m->hidden_size;
    op.epilogue = post_norm ? HG_STORE : HG_ADD;
    linear(run, op);
    if (post_norm)
        norm(run, post_norm, 0, 1);
}

static void attend(const struct run *run, const struct hg_layer *layer)
{
    const struct hg_model *m = run->model;
    const struct hg_batch *b = run->batch;
    struct hg_attention op = {
        .qkv = m->qkv,
        .out = m->attended,
        .keys = layer->keys,
        .values = layer->values,
        .cosines = layer->cosines,
        .sines = layer->sines,
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .positions = b->positions,
        .tables = b->tables,
        .scratch = m->scratch,
        .qkv_stride = m->qkv_stride,
        .out_stride = m->attended_stride,
        .table_stride = b->table_stride,
        .scratch_stride = m->scratch_stride,
        .num_tokens = b->num_tokens,
        .tokens_per_sequence = b->tokens_per_sequence,
        .num_heads = m->num_heads,
        .num_kv_heads = m->num_kv_heads,
        .head_dim = m->head_dim,
        .rotary_size = m->rotary_size,
        .window = layer->window,
        .dtype = m->dtype,
        .scale = m->scale,
        .softcap = m->attention_softcap,
        .epsilon = m->epsilon,
    };
    hg_rotate_phase(run->pool, &op);
    hg_barrier(run->pool);
    hg_attend_phase(run->pool, run->thread, &op);
    hg_barrier(run->pool);
}

static void attention(const struct run *run, const struct hg_layer *layer)
{
    const struct hg_model *m = run->model;
    int64_t rows = run->batch->num_tokens;
    int64_t q_size = m->num_heads * m->head_dim;

    norm(run, layer->attention_norm, 0, 0);
    linear(run, (struct hg_linear){
                    .panels = layer->qkv,
                    .bias = layer->qkv_bias,
                    .x = m->normed,
                    .y = m->qkv,
                    .x_stride = m->hidden_stride,
                    .y_stride = m->qkv_stride,
                    .num_rows = rows,
                    .num_outputs = q_size + 2 * m->num_kv_heads * m->head_dim,
                    .depth = m->hidden_size,
                    .epilogue = HG_STORE,
                });
    attend(run, layer);
    struct hg_linear output = {
        .panels = layer->output,
        .bias = layer->output_bias,
        .x = m->attended,
        .x_stride = m->attended_stride,
        .num_rows = rows,
        .depth = q_size,
    };
    add_linear(run, output, layer->attention_post_norm);
}

static void mix(const struct run *run, const struct hg_layer *layer)
{
    const struct hg_model *m = run->model;
    struct hg_mixture op = {
        .experts = layer->experts,
        .x = m->normed,
        .y = layer->mlp_post_norm ? m->normed : m->hidden,
        .x_stride = m->hidden_stride,
        .y_stride = m->hidden_stride,
        .num_rows = run->batch->num_tokens,
        .is_added = !layer->mlp_post_norm,
    };
    hg_mix(run->pool, run->thread, &op);
    if (layer->mlp_post_norm)
        norm(run, layer->mlp_post_norm, 0, 1);
}

static void feed_forward(const struct run *run, const struct hg_layer *layer)
{
    const struct hg_model *m = run->model;
    int64_t rows = run->batch->num_tokens;

    norm(run, layer->mlp_norm, 0, 0);
    if (layer->experts) {
        mix(run, layer);
        return;
    }
    linear(run, (struct hg_linear){
                    .panels = layer->gate_up,
                    .bias = layer->gate_up_bias,
                    .x = m->normed,
                    .y = m->inner,
                    .x_stride = m->hidden_stride,
                    .y_stride = m->inner_stride,
                    .num_rows = rows,
                    .num_outputs = m->intermediate_size,
                    .depth = m->hidden_size,
                    .epilogue = m->gate,
                });
    struct hg_linear down = {
        .panels = layer->down,
        .bias = layer->down_bias,
        .x = m->inner,
        .x_stride = m->inner_stride,
        .num_rows = rows,
        .depth = m->intermediate_size,
    };
    add_linear(run, down, layer->mlp_post_norm);
}

void hg_forward_task(struct hg_pool *pool, int thread, const void *context)
{
    const struct hg_forward *forward = context;
    const struct hg_model *m = forward->model;
    const struct hg_batch *b = forward->batch;
    struct run run = {pool, thread, m, b};

    gather(&run);
    for (int64_t i = 0; i < m->num_layers; i++) {
        attention(&run, &forward->layers[i]);
        feed_forward(&run, &forward->layers[i]);
    }
    if (!b->num_logits)
        return;
    norm(&run, m->final_norm, b->num_tokens - b->num_logits, 0);
    linear(&run, (struct hg_linear){
                     .panels = m->lm_head,
                     .x = m->normed,
                     .y = b->logits,
                     .x_stride = m->hidden_stride,
                     .y_stride = b->logits_stride,
                     .num_rows = b->num_logits,
                     .num_outputs = m->vocab_size,
                     .depth = m->hidden_size,
                     .epilogue = HG_STORE,
                     .softcap = m->logit_softcap,
                 });
}
