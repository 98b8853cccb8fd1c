/* model: layers, their graph, differentiation and loss.
 *
 * A job's `model` map becomes a graph of named layers; the graph is compiled to a straight list of
 * kernel calls over one flat parameter array. Outside this module nobody sees a layer.
 *
 * The model yields; it never calls. tt_run_advance goes on until something must cross to other runs
 * and returns what; its driver answers and calls again. So the model knows no threads and no ranks.
 *
 * A tt_model is shared and read-only between tt_model_bind/refresh; a tt_run (one per grain in
 * flight) owns the activations, so threads may run grains side by side. Nothing is allocated after
 * tt_run_open. */
#ifndef TT_MODEL_H
#define TT_MODEL_H

#include "base/base.h"
#include "tensor/tensor.h"

typedef struct tt_model tt_model;
typedef struct tt_run tt_run;

typedef struct tt_model_opts {
    const tt_kernels *kernels; /* NULL: the best this CPU runs                                    */
    int samples;               /* usual size of a grain: layouts are chosen for it; 0: 64         */
    bool sync_norm;            /* batch norm yields TT_SUM; else it is over the grain alone       */
    const char *keep;          /* a layer whose output tt_run_output will be asked for, or NULL   */
    bool tables;               /* what is `sparse` has a table; else its rows are parameters, too */
} tt_model_opts;

/* `model` is the job's map {input, layers, loss, ...}. Errors are TT_EINVAL with the place in the
 * job. */
tt_err tt_model_open(tt_node *model, const tt_model_opts *opts, tt_model **out);
void tt_model_close(tt_model *m); /* accepts NULL */

/* ---- What it looks like from outside ---- */
const tt_param *tt_model_params(const tt_model *m, int *count); /* in the order of the flat array */
int64_t tt_model_size(const tt_model *m);                       /* floats of the flat array       */
tt_shape tt_model_input(const tt_model *m); /* of its features; 0 of them: it has ids alone */
const tt_node *tt_model_input_at(const tt_model *m);
tt_shape tt_model_output(const tt_model *m); /* of the last layer              */
const tt_kernels *tt_model_kernels(const tt_model *m);
/* A layer by which a position of a sequence may see those behind it; NULL: there is none. */
const char *tt_model_looks_ahead(const tt_model *m);
/* Does a loss judge, by labels, the last layer's output as (ids, how many classes): of each id,
 * what comes behind it? The classes; 0: no. */
int tt_model_next_classes(const tt_model *m);
/* The first loss with labels, if it is -log of the probability of what is true, of all classes
 * alike and without smoothing; else -1. */
int tt_model_plain_loss(const tt_model *m);
double tt_model_flops(const tt_model *m);       /* multiply-adds x 2 of a sample, forward */
double tt_model_train_flops(const tt_model *m); /* forward and backward           */
int tt_model_sum_most(const tt_model *m); /* numbers of its longest TT_SUM; 0: it yields none */
/* What a training pass will yield as TT_GRAD_READY, in order: at most `most` spans into `out` (may
 * be NULL); returns how many there are. */
int tt_model_grads(const tt_model *m, tt_span *out, int most);

tt_row tt_model_row(const tt_model *m); /* of a sample, as it takes it */
typedef struct tt_wants { /* what the losses need of the data, and of which ids there are rows */
    int classes, targets;
    const int64_t *id_rows; /* of each id: it is below that; 0: nothing looks at it */
} tt_wants;
tt_wants tt_model_wants(const tt_model *m);
/* Columns of the last layer's output that tell two classes apart: 1, a logit of class 1; 2, one of
 * each class. 0: the first classification loss knows other classes or judges another layer. */
int tt_model_scores(const tt_model *m);
/* Classes of the first classification loss, if it judges every pixel of an image; else 0. */
int tt_model_pixel_classes(const tt_model *m);

/* What there is to tell of a GPT-2 but its weights. TT_EINVAL: the model is none, and why. It is
 * one if its layers are those of the preset `gpt`, by kind, name and order; biases may be missing,
 * and lm_head may have weights of its own. */
typedef struct tt_gpt {
    int64_t vocab, context, layers, heads, width;
    int64_t positions; /* that it has vectors for: at least the context */
    int64_t inner;     /* width of the layer between, usually 4 x width */
    double eps, embed_dropout, branch_dropout;
    bool tanh; /* its gelu is the approximation */
    bool tied; /* lm_head has the weights of wte */
} tt_gpt;
tt_err tt_model_gpt(const tt_model *m, tt_gpt *out);

typedef struct tt_layer_info {
    const char *name, *kind, *detail; /* "conv1", "conv", "5x5, stride 1" */
    const char *inputs;               /* "conv1, bn2"; "" for the one before */
    tt_shape out;
    int64_t params;
    double flops;
    bool frozen;
} tt_layer_info;
int tt_model_layer_count(const tt_model *m);
tt_layer_info tt_model_layer(const tt_model *m, int i);
int tt_model_loss_count(const tt_model *m);
const char *tt_model_loss_name(const tt_model *m, int i); /* "softmax_cross_entropy" */
/* Of the loss of the last layer, with labels if it has such; "": it has none. */
const char *tt_model_judged_by(const tt_model *m);

/* The calls it was compiled to, one line each with kernel, layout and shape: `tutti summary
 * --calls`. */
void tt_model_show_calls(const tt_model *m, tt_str *out);

/* ---- Weights ---- */
void tt_model_init(const tt_model *m, uint64_t seed,
                   float *params);                    /* keyed by (seed, name, index)       */
void tt_model_bind(tt_model *m, const float *params); /* from now on; kept, not copied       */
void tt_model_refresh(tt_model *m, int part,
                      int parts); /* rebuild packed copies of the weights; the calls for
                                   * part 0 .. parts-1 may run side by side          */

/* ---- Tables ----
 *
 * Rows that are too many to be parameters: of those in the flat array a step touches all, of these
 * the few that its samples name. They lie wherever the driver has them. One that is not there has
 * the value that tt_model_init would give it in the flat array, and is computed where it is read.
 */
typedef struct tt_model_table {
    const char *name; /* "embeddings.weight"                              */
    int64_t rows, dim;
    tt_parts parts;
    int64_t touches; /* rows that a sample names, at most                */
    bool frozen;     /* it yields no gradients                           */
} tt_model_table;
const tt_model_table *tt_model_tables(const tt_model *m, int *count);
typedef struct tt_rows_view {
    const float *records; /* row r is at r * stride                        */
    int64_t stride;
    const _Atomic uint64_t *bits; /* which of them are there, 64 in each; NULL: none is */
} tt_rows_view;
/* From now on; the first time before any pass. `seed`: of rows that are not there. */
void tt_model_bind_table(tt_model *m, int table, const tt_rows_view *v, uint64_t seed);
void tt_model_table_init(const tt_model *m, int table, int64_t row, float *out); /* when bound */

/* The gradient of a table: sample i adds dy[i][k] (bag: dy[i], by how many ids it has if `mean`) to
 * row base[k] + id[i * stride + k], if that id is not negative. */
typedef struct tt_rows {
    int table;
    int n;
    int64_t k, stride, dim;
    const int32_t *id;
    const int64_t *base;    /* NULL: 0 */
    const void *dy;         /* (n, k, dim); bag: (n, dim) */
    tt_precision precision; /* of dy: floats, or tt_bf16  */
    bool bag, mean;
} tt_rows;

/* ---- Running ---- */
typedef enum tt_pass {
    TT_PASS_TRAIN,   /* forward, loss, backward                                     */
    TT_PASS_EVAL,    /* forward as in use (no dropout, running statistics), loss    */
    TT_PASS_PREDICT, /* forward as in use                                           */
} tt_pass;

typedef struct tt_yield {
    enum { TT_PASS_DONE, TT_GRAD_READY, TT_SUM, TT_ROWS } kind;
    tt_span grad; /* GRAD_READY: final; may be summed while backward goes on                      */
    double *value; /* SUM: n numbers, to be replaced by their sum over the runs in flight ... */
    int n;
    bool wide;    /* ... of all workers, not of this one alone */
    tt_rows rows; /* ROWS: valid until it advances             */
} tt_yield;

enum { TT_LOSSES = 4 };
typedef struct tt_result { /* sums over the samples of the pass, unnormalised */
    double samples;
    double weight; /* divide gradient sums by the total of this           */
    double loss;   /* total loss x weight                                 */
    double part[TT_LOSSES], part_weight[TT_LOSSES];
    int64_t correct, top5, rows; /* of the first classification loss                    */
    /* Of two classes, by the driver: rows with a label and those of class 1, and the sums of -log
     * of the probability of what is true, and of the probability of class 1. */
    int64_t scored, yes;
    double logloss, expected;
    uint64_t witness; /* of which samples: the driver's, modulo 2^64         */
    uint64_t hash;    /* of the gradient, if it is audited: the driver's; 0  */
    int rank;         /* who made it, then                                   */
    double turned_s;  /* tt_clock_s() when forward was over                  */
} tt_result;

tt_err tt_run_open(const tt_model *m, int samples_most, bool train, tt_run **out);
/* A batch of no samples yields what any other does, with sums of zeros, and touches nothing.
 * `grad` (flat, the model's size; NULL unless training) is added to if `add`, else overwritten.
 * `seed` keys dropout. The batch and grad are borrowed until TT_PASS_DONE. */
void tt_run_begin(tt_run *r, tt_pass pass, const tt_batch *in, float *grad, bool add,
                  uint64_t seed);
void tt_run_advance(tt_run *r, tt_yield *out);
const tt_result *tt_run_result(const tt_run *r);
/* After TT_PASS_EVAL, where pixels are judged: (3, classes), of each class the pixels that are of
 * it, that were taken for it, and that are both. Else NULL. */
const int64_t *tt_run_seen(const tt_run *r);

/* A training pass to find the first number in it that is not finite: in the batch, the output of a
 * layer, the loss, or, on the way back, the gradient of a layer. False: there is none. Sums of
 * batch norm are those of this batch alone. */
enum { TT_FAULT_SAMPLES = 8 };
typedef struct tt_fault {
    const char *layer; /* "input", "loss", or its name, which is the model's */
    bool backward;
    int samples;                  /* of the batch that it is in; 0: not told apart ... */
    int sample[TT_FAULT_SAMPLES]; /* ... and the first of them ...                     */
    int last;                     /* ... and the one that was counted last             */
} tt_fault;
bool tt_run_probe(tt_run *r, const tt_batch *in, float *grad, uint64_t seed, tt_fault *out);

/* After a pass: the output of a layer (NULL: the last), (n, features) PLAIN, into out. TT_EINVAL if
 * there is no such layer or if it was fused away (open the model with `keep`). */
tt_err tt_run_output(tt_run *r, const char *layer, float *out, int64_t *features);
void tt_run_close(tt_run *r);

/* ---- Layers of your own ---- */
typedef struct tt_custom_param {
    const char *name;
    int rank;
    int64_t shape[6];
    tt_param_role role;
    double fan_in;
    float fill;
} tt_custom_param;
typedef struct tt_custom {
    const char *kind; /* name in job files                                                        */
    const tt_key *keys; /* its keys, filled into a struct of `args_size` bytes */
    int key_count;
    size_t args_size;
    const void *args_start; /* what that struct holds before the keys are read; NULL: zeros */
    /* Output shape and parameters from arguments and input shape. fan_in > 0: uniform
     * +-1/sqrt(fan_in); else `fill`. What forward and backward need to know of the shapes it may
     * put into args. */
    tt_err (*shape)(void *args, tt_shape in, tt_shape *out, tt_custom_param *params, int *count);
    void (*forward)(const void *args, int n, const float *x, const float *const *w, float *y,
                    bool train);
    /* dx is overwritten (NULL: not wanted); dw[i] is added to (NULL: frozen). */
    void (*backward)(const void *args, int n, const float *x, const float *y, const float *dy,
                     const float *const *w, float *dx, float *const *dw);
} tt_custom;
tt_err
tt_custom_add(const tt_custom *kind); /* before tt_model_open; kept, not copied; not thread-safe */

#endif
