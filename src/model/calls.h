/* calls: a compiled model: tensors, buffers and the list of kernel calls. Private to model/.
 *
 * Time runs over the calls: call i goes forward at time i and backward at time 2 * count - 1 - i. A
 * buffer lives from the time it is first written to the time it is last read; buffers whose lives
 * do not meet share memory. */
#ifndef TT_CALLS_H
#define TT_CALLS_H

#include "graph.h"

typedef enum call_kind {
    CALL_CONV,
    CALL_MAXPOOL,
    CALL_AVGPOOL,
    CALL_UPSAMPLE,
    CALL_NORM,
    CALL_LAYERNORM,
    CALL_SOFTMAX,
    CALL_UNARY,
    CALL_ADD,
    CALL_MUL,
    CALL_CONCAT,
    CALL_DROPOUT,
    CALL_REORDER,
    CALL_CONVERT, /* between float32 and what kernels store: of the input, losses, custom layers */
    CALL_CUSTOM,
    CALL_EMBED,
    CALL_POSITIONS,
    CALL_ATTEND,
    CALL_INTERACT,
    CALL_FM,
    CALL_SUM,
    CALL_RECUR,
    CALL_LOSS
} call_kind;

/* What a layer's output lies in. Tensor 0 is the batch's x. */
typedef struct tensor {
    int64_t count; /* numbers of a sample             */
    tt_layout layout;
    bool wide;         /* float32, whatever the kernels store: a convolution widens it in place */
    int act, grad;     /* buffers; -1: none               */
    bool wants_grad;   /* something trainable is upstream */
    bool grad_written; /* while compiling the way back    */
} tensor;

typedef struct buffer {
    int64_t per_sample; /* bytes ...                                        */
    int64_t fixed;      /* ... plus these                                   */
    bool lanes;         /* per_sample is for samples rounded up to whole lanes */
    int birth, death;
    int death_forward; /* where there is no way back                       */
    int scratch_of;    /* > 0: the bytes are what the kernel of call (this - 1) asks for */
} buffer;

typedef struct call {
    call_kind kind;
    int layer; /* the (first) layer it stands for; -1: a copy for the input or a loss */
    int in[INPUTS_MOST], in_count; /* tensors */
    int out;
    bool in_grad[INPUTS_MOST];  /* this input's gradient is wanted ...              */
    bool in_add[INPUTS_MOST];   /* ... and added to what is there                   */
    bool in_alias[INPUTS_MOST]; /* ... or is the output's gradient itself           */
    bool backward;              /* has a way back                                   */
    bool train_params;
    int64_t c, hw;             /* of the input (concat, add: of the output)        */
    int64_t rows;              /* conv: vectors of a sample; loss: what it judges  */
    int64_t in_c[INPUTS_MOST]; /* concat                                           */
    tt_layout layout, from;    /* of the output; of a reorder's input              */
    tt_conv conv;
    tt_window win;
    tt_unary unary;
    int64_t lead, d, tail; /* softmax, layer norm, of a sample: lead x d x tail */
    bool log, relu, count_pad, bilinear;
    bool wide; /* norm: over the whole batch                       */
    float p, eps;
    int add; /* norm: tensor added before the relu; -1: none     */
    int param[LAYER_PARAMS], param_count;
    int own;   /* the first that is not another layer's                           */
    bool late; /* embed: another call has written to its gradient before         */
    tt_attend_args attend;
    tt_embed_args embed; /* with what the run does not add: sizes, and the tables' beginnings ... */
    int64_t first;       /* ... and the first of the ids it takes                               */
    bool bag;
    int table; /* where its rows are; -1: they are parameters */
    tt_interact_args interact;
    tt_recur_args recur;
    int64_t packed_at, packed_count;
    int saved, scratch, scratch_back; /* buffers, -1: none                             */
    int loss;
    int head; /* loss: the call that it is computed with, in blocks (head.c); -1: none ... */
    int block, block_grad; /* ... buffers of a block, -1: none                             */
    bool judged;           /* conv: its output is never whole where a run is for training  */
    const tt_custom *custom;
    const void *args;
} call;

struct tt_model {
    graph g;
    tt_arena *arena;
    const tt_kernels *k;
    bool sync_norm;
    int keep; /* layer kept from fusion; -1: none                       */
    int samples;
    tensor *tensors;
    int tensor_count;
    buffer *buffers;
    int buffer_count;
    call *calls;
    int call_count;
    int *layer_tensor;               /* layer -> tensor; -1: fused away                        */
    const float *params;             /* bound                                                  */
    tt_rows_view views[TABLES_MOST]; /* of tables: bound, and ...                 */
    uint64_t keys[TABLES_MOST];      /* ... what their initial rows follow from    */
    void *packed;                    /* numbers as the kernels store them */
    int64_t packed_count;
    double train_flops;
};

void compile(tt_model *m); /* from m->g; cannot fail */
void plan_lives(tt_model *m);

/* head.c: the call that a loss can be computed with, once the way back is planned; -1: none. And
 * the rows of a block. */
int head_of(const tt_model *m, const call *loss);
int64_t head_block(const tt_model *m, const call *loss);

/* model.c: numbers `first` on of a tensor as it begins; of `key_of` it. */
uint64_t key_of(uint64_t seed, const char *name);
void begin_numbers(uint64_t key, const param_init *init, int64_t first, int64_t n, float *out);

/* Bytes of a number of tensor t. */
static inline int64_t number_size(const tt_model *m, int t)
{
    return m->tensors[t].wide ? (int64_t)sizeof(float) : (int64_t)tt_kernels_element(m->k);
}

#endif
