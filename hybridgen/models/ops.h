/* The operations of a transformer block, as records of 8-byte words.
 *
 * Python packs the same records (records.py); every pointer is to memory that a torch tensor or
 * numpy array keeps alive for the length of the call. Strides are in elements of the pointed-to
 * type. Activations are float32; weights and KV are float32 or bfloat16.
 */
#ifndef HYBRIDGEN_OPS_H
#define HYBRIDGEN_OPS_H

#include <stdint.h>

#include "hybridgen/models/pool.h"

#define HG_PANEL 32 /* outputs of a weight panel */
#define HG_HALF 16  /* a panel is two halves of 16 */
#define HG_BLOCK 16 /* positions of a KV block */
#define HG_TILE 12  /* most rows computed together, over all variants */

enum hg_dtype { HG_FLOAT32 = 0, HG_BFLOAT16 = 1 };
enum hg_epilogue { HG_STORE = 0, HG_ADD = 1, HG_SWIGLU = 2, HG_GEGLU = 3 };

/* Whether a product is of gates and ups, in paired panels. */
static inline int hg_is_gated(int64_t epilogue)
{
    return epilogue == HG_SWIGLU || epilogue == HG_GEGLU;
}

/* Weights in panels of 32 outputs: [panel][depth][32]. float32: the 32 outputs in order. bfloat16:
 * 16 words of 32 bits, output j in the low half of word j and output 16 + j in its high half, so
 * that one shift and one mask make two float vectors. Missing outputs are zeros.
 * With is_paired, the low half of a panel is 16 rows of `first`, the high half the same of
 * `second` (gate and up projections, for gated epilogues). */
struct hg_pack {
    void *panels;
    const void *first;
    const void *second;
    int64_t num_outputs; /* of `first` */
    int64_t depth;
    int64_t dtype;
    int64_t is_paired;
};

/* y[r, o] = Σ_d x[r, d] w[o, d] (+ bias[o]), stored, added to y, or silu(low) · high (HG_GEGLU:
 * gelu, by its tanh formula). The sum runs over d in order whatever the number of rows: results do
 * not depend on the batch. */
struct hg_linear {
    const void *panels;
    const float *bias; /* [panel][32] in the panels' order, or NULL */
    const float *x;
    float *y;
    int64_t x_stride;
    int64_t y_stride;
    int64_t num_rows;
    int64_t num_outputs; /* columns of y */
    int64_t depth;
    int64_t dtype;
    int64_t epilogue;
    double softcap; /* c > 0: sums s become c · tanh(s / c) before the epilogue */
};

/* y[r] = x[r] / sqrt(mean(x[r]²) + epsilon) · weight, or that added to y[r] */
struct hg_norm {
    const float *x;
    const float *weight;
    float *y;
    int64_t x_stride;
    int64_t y_stride;
    int64_t num_rows;
    int64_t size;
    int64_t is_added;
    double epsilon;
};

/* y[r] = scale · row ids[r] of packed weights */
struct hg_gather {
    const void *panels;
    const int32_t *ids;
    float *y;
    int64_t y_stride;
    int64_t num_rows;
    int64_t depth;
    int64_t dtype;
    double scale;
};

/* Norms, rotation, KV store and attention of num_tokens tokens, tokens_per_sequence consecutive
 * ones of each sequence (1 in decode, num_tokens in prefill).
 * With a window, blocks that lie before it as a whole are not read: they may be anyone's.
 * qkv: [token][q heads, then k heads, then v heads][head_dim]; normed and rotated in place.
 * keys: [block][kv head][head_dim][16]; values: [block][kv head][16][head_dim]. */
struct hg_attention {
    float *qkv;
    float *out; /* [token][head][head_dim] */
    void *keys;
    void *values;
    const float *cosines; /* [position][rotary_size / 2] */
    const float *sines;
    const float *q_norm; /* [head_dim], of each head before rotation; or NULL */
    const float *k_norm;
    const int32_t *positions; /* [token] */
    const int32_t *tables;    /* [sequence][table_stride] */
    float *scratch;           /* [thread][scratch_stride] */
    int64_t qkv_stride;
    int64_t out_stride;
    int64_t table_stride;
    int64_t scratch_stride;
    int64_t num_tokens;
    int64_t tokens_per_sequence;
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t rotary_size; /* leading dimensions of a head that are rotated */
    int64_t window;      /* positions that a token sees, its own included; 0 for all */
    int64_t dtype;
    double scale;
    double softcap; /* c > 0: scaled scores s become c · tanh(s / c) */
    double epsilon; /* of the norms */
};

/* What files store elements as: in blocks of so many, and their bytes (GGUF specification). */
#define HG_ELEMENTS(X)                                                                            \
    X(F32, 1, 4)                                                                                  \
    X(F16, 1, 2)                                                                                  \
    X(BF16, 1, 2)                                                                                 \
    X(Q4_0, 32, 18)                                                                               \
    X(Q4_1, 32, 20)                                                                               \
    X(Q5_0, 32, 22)                                                                               \
    X(Q5_1, 32, 24)                                                                               \
    X(Q8_0, 32, 34)                                                                               \
    X(Q2_K, 256, 84)                                                                              \
    X(Q3_K, 256, 110)                                                                             \
    X(Q4_K, 256, 144)                                                                             \
    X(Q5_K, 256, 176)                                                                             \
    X(Q6_K, 256, 210)

#define HG_ELEMENT_NUMBER(name, size, bytes) HG_##name,
enum { HG_ELEMENTS(HG_ELEMENT_NUMBER) HG_NUM_ELEMENTS };

struct hg_element {
    const char *name;
    int64_t size;
    int64_t bytes;
};
extern const struct hg_element hg_elements[HG_NUM_ELEMENTS];

/* Blocks of one element → floats of another: F32, F16 or BF16, rounded to the nearest, ties to
 * even. */
struct hg_conversion {
    const uint8_t *from;
    uint8_t *to;
    int64_t num_blocks;
    int64_t from_element;
    int64_t to_element;
};

struct hg_experts; /* experts.h */

struct hg_layer {
    const void *qkv;
    const void *output;
    const void *gate_up;
    const void *down;
    const float *qkv_bias;    /* or NULL */
    const float *output_bias; /* or NULL */
    const float *gate_up_bias; /* or NULL */
    const float *down_bias;    /* or NULL */
    const float *attention_norm;
    const float *mlp_norm;
    const float *attention_post_norm; /* or NULL */
    const float *mlp_post_norm;       /* or NULL */
    const float *q_norm;              /* or NULL */
    const float *k_norm;              /* or NULL */
    const float *cosines;
    const float *sines;
    int64_t window;
    void *keys;
    void *values;
    const struct hg_experts *experts; /* or NULL: a plain feed-forward block */
};

struct hg_model {
    int64_t num_layers;
    int64_t vocab_size;
    int64_t hidden_size;
    int64_t intermediate_size;
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t rotary_size;
    int64_t gate; /* epilogue of the gated product */
    int64_t dtype;
    int64_t max_rows;
    double epsilon;
    double scale;
    double embedding_scale;
    double attention_softcap;
    double logit_softcap;
    const void *embedding;
    const void *lm_head;
    const float *final_norm;
    /* Work space: [max_rows][stride] each. */
    float *hidden;
    float *normed;
    float *qkv;
    float *attended;
    float *inner;
    float *scratch;
    int64_t hidden_stride; /* of hidden and normed */
    int64_t qkv_stride;
    int64_t attended_stride;
    int64_t inner_stride;
    int64_t scratch_stride;
};

struct hg_batch {
    const int32_t *ids;
    const int32_t *positions;
    const int32_t *tables;
    int64_t table_stride;
    int64_t num_tokens;
    int64_t tokens_per_sequence;
    int64_t num_logits; /* rows of logits: of the last so many tokens */
    float *logits;
    int64_t logits_stride;
};

/* The kernels, built once per instruction set. */
struct hg_kernels {
    const char *name;
    /* All rows of one panel; `next` is the panel this thread does after it, or -1. */
    void (*linear_panel)(const struct hg_linear *op, int64_t panel, int64_t next);
    void (*norm_row)(const struct hg_norm *op, int64_t row);
    void (*rotate_token)(const struct hg_attention *op, int64_t token);
    /* One tile of query rows of one kv head of one sequence. */
    void (*attend_tile)(const struct hg_attention *op, int64_t item, float *scratch);
    int64_t tile; /* rows of an attention tile */
    /* Returns the largest magnitude before rounding; NaN counts as larger than infinity. */
    float (*convert)(const struct hg_conversion *op);
};

extern const struct hg_kernels hg_kernels_avx512;
extern const struct hg_kernels hg_kernels_avx2;
extern const struct hg_kernels hg_kernels_baseline;

/* Best kernels of this CPU; `name` limits the choice (tests), NULL when there is none such. */
const struct hg_kernels *hg_select_kernels(const char *name);

/* One panel of a product, for phases that share several products out; see `linear_panel`. */
void hg_linear_panel(const struct hg_linear *op, int64_t panel, int64_t next);

/* In the calling thread; see `convert`. */
float hg_convert(const struct hg_conversion *op);

/* Phases: every thread of the pool calls these; a barrier must follow. */
void hg_pack_phase(struct hg_pool *pool, const struct hg_pack *op);
void hg_gather_phase(struct hg_pool *pool, const struct hg_gather *op);
void hg_linear_phase(struct hg_pool *pool, const struct hg_linear *op);
void hg_norm_phase(struct hg_pool *pool, const struct hg_norm *op);
void hg_rotate_phase(struct hg_pool *pool, const struct hg_attention *op);
void hg_attend_phase(struct hg_pool *pool, int thread, const struct hg_attention *op);

/* The whole model for one batch. */
struct hg_forward {
    const struct hg_model *model;
    const struct hg_layer *layers;
    const struct hg_batch *batch;
};
void hg_forward_task(struct hg_pool *pool, int thread, const void *forward);

#endif
