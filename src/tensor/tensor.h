/* tensor: shapes, layouts and kernels: the arithmetic, and nothing else.
 *
 * A kernel is single-threaded and works on one grain's worth of samples; threads run grains side by
 * side. There is one table of kernels per instruction set and type of activation; `ref` is plain C
 * and defines what is right (it takes TT_PLAIN alone). The others are compiled from the same
 * source, src/tensor/simd, and take every layout. The one exception: ref's reorder knows TT_NHWC,
 * which losses take. */
#ifndef TT_TENSOR_H
#define TT_TENSOR_H

#include "base/base.h"

/* What activations, their gradients and packed weights are stored as: float, or, in the tables
 * whose `precision` is TT_IN_BF16, the upper half of one. A load widens, a store rounds to the
 * nearest (of two to the even one; what is not a number stays so), and all arithmetic between is
 * float32. Whoever calls kernels of both kinds has pointers to void; a kernel's own source is
 * compiled for one, and the types do not mix. */
typedef enum tt_precision { TT_IN_FLOAT32, TT_IN_BF16 } tt_precision;
typedef struct tt_bf16 {
    uint16_t bits;
} tt_bf16;
#ifdef TT_ACT_BF16
typedef tt_bf16 tt_act;
#else
typedef float tt_act;
#endif

static inline float tt_bf16_get(tt_bf16 x)
{
    union {
        uint32_t bits;
        float value;
    } u = {.bits = (uint32_t)x.bits << 16};
    return u.value;
}
static inline tt_bf16 tt_bf16_of(float x)
{
    union {
        float value;
        uint32_t bits;
    } u = {.value = x};
    uint32_t half = 0x7fff + (u.bits >> 16 & 1);
    return (tt_bf16){(uint16_t)(x != x ? u.bits >> 16 | 0x40 : (u.bits + half) >> 16)};
}

typedef struct tt_shape {
    int rank;
    int64_t dim[6];
} tt_shape;
int64_t tt_shape_count(tt_shape s); /* product of the dimensions, 1 for rank 0 */
char *tt_shape_show(tt_shape s, char *buf, size_t size); /* "10x24x24" */
bool tt_shape_equal(tt_shape a, tt_shape b);

/* How a batch of n images (c, h, w) lies in memory. Vectors are images with h = w = 1.
 *   PLAIN  [n][c][h][w]
 *   NHWC   [n][h][w][c]              channels innermost: many channels
 *   LANES  [n / L][c][h][w][L]       samples innermost, L = kernels' `lanes`: few channels, and
 * dense layers. The last slice is padded. In activations padded lanes are finite; in gradients they
 * are zero. */
typedef enum tt_layout { TT_PLAIN, TT_NHWC, TT_LANES } tt_layout;

/* ---- Parameters: one flat array, of which every other module sees named spans ---- */
typedef struct tt_span {
    int64_t at, n;
} tt_span;

typedef enum tt_param_role {
    TT_WEIGHT, /* weights of dense and convolution: decayed                                    */
    TT_BIAS,   /* biases, norm scales and shifts: not decayed unless decay_all                 */
    TT_STAT,   /* running statistics: w = (1 - momentum) w + momentum * (sum / samples)        */
} tt_param_role;

typedef struct tt_parts { /* of rows that are several tables, one behind the other */
    int count;            /* 0: nothing is known */
    const int64_t *rows;  /* of each */
} tt_parts;

typedef struct tt_param {
    const char *name;
    int64_t at, n; /* span in the flat array        */
    int rank;
    int64_t shape[6];
    tt_param_role role;
    bool frozen;
    float momentum; /* STAT only                     */
    tt_parts parts; /* of a table                    */
} tt_param;

/* ---- A batch, as data makes it and the model takes it ---- */
typedef struct tt_row { /* how many of each a sample has; of what it has none, the batch has NULL */
    int64_t features;
    int64_t ids;    /* which rows of tables it means: tokens, categories         */
    int64_t labels; /* 1: of the sample; more: of each of its positions or pixels */
    int64_t targets;
} tt_row;
typedef struct tt_batch {
    int n;                 /* samples                                                        */
    const float *x;        /* (n, features), PLAIN                                           */
    const int32_t *ids;    /* (n, ids); -1: none                                             */
    const int32_t *label;  /* (n, labels); -1: there is none                                 */
    const float *target;   /* (n, targets). NAN in the first: this row has none              */
    const uint64_t *place; /* (n, 2): pass and place, the key of the sample's randomness     */
} tt_batch;
tt_err tt_batch_open(int n_most, const tt_row *row, tt_batch *out);
void tt_batch_close(tt_batch *b, int n_most, const tt_row *row);
tt_batch tt_batch_cut(const tt_batch *b, int first, int n, const tt_row *row); /* a view */

/* ---- Windows: convolution and pooling ---- */
typedef struct tt_window {
    int c, h, w;                        /* input                                    */
    int o, oh, ow;                      /* output channels and size                 */
    int kh, kw, sh, sw, ph, pw, dh, dw; /* kernel, stride, padding (before), dilation; (padding
                                           after may be larger: oh, ow say) */
    int groups;
} tt_window;

static inline tt_window tt_window_dense(int c, int o) /* an image of one pixel */
{
    return (tt_window){c, 1, 1, o, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1};
}

/* A convolution and what is fused behind it: y = relu(maxpool(conv(x) + b)). A dense layer is one
 * with h = w = kh = kw = 1. Weights are (o, c / groups, kh, kw), as elsewhere. */
typedef struct tt_conv {
    tt_window win;
    tt_layout layout; /* of x and y both                                                   */
    /* A transposed convolution: x is of the window's output, (o, oh, ow), and y of its input, (c,
     * h, w); y is what dx would be for dy = x. Its bias is (c). Neither groups nor pooling. */
    bool turned;
    bool bias, relu;
    bool lean; /* dense, of many rows: no packed copy of the weights for dx                      */
    bool pool; /* LANES only: max pooling behind it ...                             */
    int pkh, pkw, psh, psw; /* ... window and stride, no padding, no overlap                     */
    int poh, pow_;          /* ... and the size of y                                             */
} tt_conv;

typedef struct tt_conv_args {
    int n;
    const tt_act *x;
    const float *w, *b;   /* b NULL: no bias */
    const tt_act *packed; /* what conv_pack made of w                                      */
    tt_act *y;            /* output                                                        */
    uint8_t *pick;        /* pool: which of the window won, or 255: none (relu)            */
    tt_act *dy;           /* gradient of y; backward may overwrite it                      */
    tt_act *dx;
    bool dx_add; /* NULL: not wanted; add to what is there                        */
    float *dw, *db;
    bool dw_add;   /* NULL: frozen                                                */
    void *scratch; /* conv_scratch bytes, 64-aligned                                */
} tt_conv_args;

typedef struct tt_pool_args { /* outer x (h, w) x inner: PLAIN (n*c, 1), NHWC (n, c), LANES
                                 (slices*c, L)      */
    tt_window win; /* c, o, groups unused                                                     */
    int64_t outer, inner;
    bool count_pad; /* average: padding counts in the divisor                                  */
    const tt_act *x;
    tt_act *y;
    uint8_t *
        pick; /* pick: index in the window (up to 255 elements), 255: all padding; NULL: not kept */
    const tt_act *dy;
    tt_act *dx;
    bool dx_add;
} tt_pool_args;

/* Each pixel becomes sh x sw; outer and inner as in pooling. Bilinear: between the centres of
 * pixels, and beyond the outermost centres as at them. */
typedef struct tt_upsample_args {
    int64_t outer, inner;
    int h, w, sh, sw; /* of the input; times */
    bool bilinear;
    const tt_act *x;
    tt_act *y;
    const tt_act *dy;
    tt_act *dx;
    bool dx_add;
} tt_upsample_args;

typedef struct tt_norm_args { /* batch norm: a x c x b: PLAIN (n, c, hw), NHWC (n*hw, c, 1), LANES
                                 (slices, c, hw*L) */
    int64_t a, c, b;
    int lanes, valid; /* lanes > 0: LANES, and how many lanes of the last slice are samples      */
    float eps;
    bool relu; /* relu fused behind                                                       */
    const tt_act *x;
    const float *gamma, *beta;
    const float *shift; /* (c): subtracted before sums are taken (the running mean) */
    double *sums; /* (2c + 1): sum, sum of squares of x - shift; count.   Backward: sum dy, sum
                     dy*xhat */
    float *mean, *rstd; /* (c) each */
    const tt_act *add; /* NULL, or a tensor added before the relu: y = relu(bn(x) + add)          */
    tt_act *y;
    tt_act *dy, *dx;
    bool dx_add; /* dy is masked by the relu in place (so it is also add's gradient)     */
} tt_norm_args;

typedef struct tt_rows_args { /* layer norm, softmax: over the middle of outer x d x inner */
    int64_t outer, d, inner;
    float eps;
    const tt_act *x;
    const float *gamma, *beta;
    tt_act *y;
    float *mean, *rstd; /* (outer * inner) each, kept for backward */
    const tt_act *dy;
    tt_act *dx;
    bool dx_add;
    float *dgamma, *dbeta;
    bool dw_add;
} tt_rows_args;

/* Rows of a table, by their numbers. Of n samples each has k ids, the first of them `stride` behind
 * that of the sample before; -1 stands for a row of zeros. */
typedef struct tt_embed_args {
    int n;
    int64_t stride, k, dim;
    const int32_t *id;
    const int64_t *base; /* (k): each id has a table of its own, which begins at this row of w;
                          * NULL: one table for all                                     */
    bool mean;           /* bag: divided by how many there are                          */
    const float *w;      /* (rows, dim)                                                 */
    tt_act *y;           /* (n, k, dim); bag: (n, dim), their sum                       */
    const tt_act *dy;
    float *dw; /* added to, in the order of the ids                                     */
} tt_embed_args;

/* Vectors of a sample, and what becomes of them together. */
typedef struct tt_fold_args {
    int n;
    int64_t k, dim;
    const tt_act *x; /* (n, k, dim)                                                      */
    tt_act *y;       /* sum: (n, dim); fm: (n), the sum of the dots of all pairs         */
    const tt_act *dy;
    tt_act *dx;
    bool dx_add;
} tt_fold_args;

/* The dots of all pairs of k vectors, of which each tensor brings some:
 * y = the first vector, then (1, 0), (2, 0), (2, 1), (3, 0) ... */
enum { TT_INTERACT_PARTS = 16 };
typedef struct tt_interact_args {
    int n, parts;
    int64_t k, dim;
    int64_t count[TT_INTERACT_PARTS];   /* of each part; k in all                         */
    const tt_act *x[TT_INTERACT_PARTS]; /* (n, count, dim)                               */
    tt_act *y;                          /* (n, dim + k (k - 1) / 2)                      */
    const tt_act *dy;
    tt_act *dx[TT_INTERACT_PARTS]; /* NULL: not wanted                                   */
    bool dx_add[TT_INTERACT_PARTS];
    void *scratch; /* interact_scratch bytes, 64-aligned                                */
} tt_interact_args;

/* Attention: y = softmax(scale * q k^T) v, for each head. With `causal` a position sees those up to
 * itself. Of the scores, (t, t) for each head, a few rows are there at a time. */
typedef struct tt_attend_args {
    int n, t, heads, dim; /* samples, positions; numbers of a head                       */
    bool causal;
    const tt_act *x; /* (n, t, 3, heads, dim): queries, keys and values side by side      */
    tt_act *y;       /* (n, t, heads, dim)                                                */
    float *lse;      /* (n, heads, t): log of the sum of exponentials, kept for backward  */
    const tt_act *dy;
    tt_act *dx;
    bool dx_add;
    void *scratch; /* attend_scratch bytes, 64-aligned */
} tt_attend_args;

/* A recurrent layer, from position to position of n sequences; h and c begin as zeros. Of its
 * gates, LSTM i, f, g, o and GRU r, z, n, with p = w_ih x + b_ih and q = w_hh h + b_hh:
 *   LSTM  i, f, o = sigmoid(p + q); g = tanh(p + q); c = f c + i g; h = o tanh(c)
 *   GRU   r, z = sigmoid(p + q); n = tanh(p + r q); h = (1 - z) n + z h
 * Weights are (gates * h, d) and (gates * h, h), as elsewhere. */
typedef enum tt_recur_kind { TT_LSTM, TT_GRU } tt_recur_kind;
typedef struct tt_recur_args {
    tt_recur_kind kind;
    int n, t, d, h;  /* samples, positions; numbers of a position, of a state              */
    bool last;       /* y and dy are those of the last position alone                      */
    const tt_act *x; /* (n, t, d)                                                          */
    const float *w_ih, *w_hh, *b_ih, *b_hh;
    const tt_act *packed; /* what recur_pack made of w_ih and w_hh                          */
    tt_act *y;            /* (n, t, h), or (n, h)                                           */
    float *saved;         /* tt_recur_saved floats of each sample, from forward to backward */
    const tt_act *dy;
    tt_act *dx; /* NULL: not wanted */
    bool dx_add;
    float *dw_ih, *dw_hh, *db_ih, *db_hh; /* NULL: frozen */
    bool dw_add;
    void *scratch; /* recur_scratch bytes, 64-aligned */
} tt_recur_args;
static inline int tt_recur_gates(tt_recur_kind kind)
{
    return kind == TT_LSTM ? 4 : 3;
}
/* From the sizes alone: gates; cells, or what r scales; and states, unless they are the output. */
static inline int64_t tt_recur_saved(const tt_recur_args *a)
{
    return (int64_t)(tt_recur_gates(a->kind) + 1 + a->last) * a->h * a->t;
}

/* GELU_TANH: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as GPT-2 has it. */
typedef enum tt_unary { TT_RELU, TT_GELU, TT_GELU_TANH, TT_TANH, TT_SIGMOID } tt_unary;

typedef struct tt_drop_args {
    int n;
    int64_t c, hw;
    tt_layout layout;
    float p;
    uint64_t key;
    const uint64_t
        *place; /* keep = philox(key; place, element c*hw + pixel): layout plays no part */
    const tt_act *x;
    tt_act *y; /* backward: x is dy, y is dx                          */
    bool add;
} tt_drop_args;

typedef enum tt_loss_kind { TT_LOSS_SOFTMAX, TT_LOSS_NLL, TT_LOSS_MSE, TT_LOSS_BCE } tt_loss_kind;
typedef struct tt_loss_args {
    tt_loss_kind kind;
    int n;
    int64_t d; /* x is (n, d), PLAIN                                            */
    const float *x;
    const int32_t *label;
    const float *target;
    const float *class_weight; /* (d) or NULL                                                   */
    float smoothing;
    float *dx;                   /* NULL: forward only. Gradient of the *sum*, unnormalised       */
    double loss, weight;         /* out: sum of losses, sum of weights (rows that count)          */
    int64_t correct, top5, rows; /* out, of labels and of BCE with d = 1; rows: how many counted */
    /* NULL, or (3, d), added to, of softmax and NLL with labels: rows of each class, rows taken for
     * it (the largest x; none where one is not a number), and rows that are both. */
    int64_t *seen;
} tt_loss_args;

/* ---- The table ---- */
typedef struct tt_kernels {
    const char *name; /* "ref", "generic", "avx2", "avx512"; "avx512-bf16"             */
    tt_precision precision;
    const char *product; /* how matrices are multiplied: "float32", "amx"; see tt_kernels_with */
    bool plain;          /* PLAIN alone, nothing fused: ref                                    */
    int lanes;           /* L of the LANES layout; 0: there is none                            */

    /* Convolution and dense. conv_layout says which layout is fastest for a window, from shape and
     * the usual number of samples alone, never from timing. */
    tt_layout (*conv_layout)(const tt_window *w, int n);
    size_t (*conv_packed)(const tt_conv *c); /* numbers of packed weights, 0 if none      */
    void (*conv_pack)(const tt_conv *c, const float *w, tt_act *packed);
    size_t (*conv_scratch)(const tt_conv *c, int n); /* bytes                                     */
    void (*conv_forward)(const tt_conv *c, const tt_conv_args *a);
    void (*conv_backward)(const tt_conv *c, const tt_conv_args *a);

    void (*maxpool_forward)(const tt_pool_args *a);
    void (*maxpool_backward)(const tt_pool_args *a);
    void (*avgpool_forward)(const tt_pool_args *a);
    void (*avgpool_backward)(const tt_pool_args *a);
    void (*upsample_forward)(const tt_upsample_args *a);
    void (*upsample_backward)(const tt_upsample_args *a);

    void (*norm_sums)(const tt_norm_args *a);    /* x -> sums                                 */
    void (*norm_forward)(const tt_norm_args *a); /* mean, rstd given -> y                     */
    void (*norm_backward_sums)(const tt_norm_args *a); /* dy (masked), x -> sums */
    void (*norm_backward)(const tt_norm_args *a); /* sums -> dx                                */

    void (*layernorm_forward)(const tt_rows_args *a);
    void (*layernorm_backward)(const tt_rows_args *a); /* inner = 1 or LANES */
    void (*softmax_forward)(const tt_rows_args *a, bool log);
    void (*softmax_backward)(const tt_rows_args *a, bool log); /* x is y, the forward's output */

    void (*embed_forward)(const tt_embed_args *a);
    void (*embed_backward)(const tt_embed_args *a);
    void (*bag_forward)(const tt_embed_args *a);
    void (*bag_backward)(const tt_embed_args *a);
    void (*sum_forward)(const tt_fold_args *a);
    void (*sum_backward)(const tt_fold_args *a);
    void (*fm_forward)(const tt_fold_args *a);
    void (*fm_backward)(const tt_fold_args *a);
    size_t (*interact_scratch)(const tt_interact_args *a); /* from the sizes alone */
    void (*interact_forward)(const tt_interact_args *a);
    void (*interact_backward)(const tt_interact_args *a);
    size_t (*attend_scratch)(const tt_attend_args *a); /* from the sizes alone */
    void (*attend_forward)(const tt_attend_args *a);
    void (*attend_backward)(const tt_attend_args *a);
    size_t (*recur_packed)(const tt_recur_args *a); /* numbers of packed weights, 0 if none; ... */
    void (*recur_pack)(const tt_recur_args *a, tt_act *packed); /* w_ih and w_hh alone are read  */
    size_t (*recur_scratch)(const tt_recur_args *a); /* ... bytes: both from the sizes alone    */
    void (*recur_forward)(const tt_recur_args *a);
    void (*recur_backward)(const tt_recur_args *a); /* writes over what was saved */

    void (*unary_forward)(tt_unary f, int64_t n, const tt_act *x, tt_act *y);
    /* Both GELUs go by x, the others by y: the one that is not read may be NULL. dx may be dy. */
    void (*unary_backward)(tt_unary f, int64_t n, const tt_act *x, const tt_act *y,
                           const tt_act *dy, tt_act *dx, bool add);
    void (*add)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y); /* y may be a */
    void (*mul)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y, bool accumulate);
    void (*shift)(int64_t n, const tt_act *x, const float *w, tt_act *y); /* y = x + w         */
    void (*gather)(int64_t n, const tt_act *dy, float *dw, bool add);     /* dw (+)= dy        */
    void (*widen)(int64_t n, const tt_act *x, float *y);
    void (*narrow)(int64_t n, const float *x, tt_act *y, bool add);
    void (*scale)(int64_t n, float k, float *y); /* of floats */
    void (*dropout)(const tt_drop_args *a);      /* forward, and backward on dy               */
    void (*reorder)(int n, int64_t c, int64_t hw, tt_layout from, const tt_act *x, tt_layout to,
                    tt_act *y, bool add);
    void (*loss)(tt_loss_args *a);
} tt_kernels;

/* "auto": the best this CPU runs (tried, not only announced); else by name. TT_EENV if it cannot
 * run here; TT_EINVAL if the name is unknown. TUTTI_KERNELS in the environment overrides "auto". */
tt_err tt_kernels_find(const char *name, const tt_kernels **out);
int tt_kernels_all(const tt_kernels *const **out); /* those this CPU can run, best first        */
/* The same of a precision. "avx2" names the table of its instruction set ("avx2-bf16"), too. Of
 * bf16, products are of packed weights and, by what a child process has tried, of AMX tiles
 * ("amx"), the dot products of AVX-512 BF16 ("dot"), or of numbers widened to float32 ("widened").
 * The first call tries them; with MPI it should come before MPI is initialised, because children of
 * a process with registered memory can do harm. Tiles come first. Dot products come before widened
 * ones on AMD's processors alone: on Intel's they are slower. */
tt_err tt_kernels_pick(const char *name, tt_precision p, const tt_kernels **out);
int tt_kernels_with(tt_precision p, const tt_kernels *const **out);
/* The table of float32 of the same instruction set: for weights and their gradients. */
const tt_kernels *tt_kernels_float32(const tt_kernels *k);
static inline size_t tt_kernels_element(const tt_kernels *k) /* bytes of an activation */
{
    return k->precision == TT_IN_BF16 ? sizeof(tt_bf16) : sizeof(float);
}
/* One core's float32 peak, measured in 20 ms. Of tables that multiply bf16 by instructions of its
 * own, what tt_product_gflops tells. */
double tt_peak_gflops(const tt_kernels *k);
/* What one core makes of a product of two matrices of 1024 x 1024: the best of what 100 ms hold, at
 * least of one. 0: no memory. */
double tt_product_gflops(const tt_kernels *k);

/* What the CPU offers, for `tutti doctor`: "avx2 fma f16c ..." */
const char *tt_cpu_features(char *buf, size_t size);
const char *tt_cpu_model(char *buf, size_t size);

#endif
