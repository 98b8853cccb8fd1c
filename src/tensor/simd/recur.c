/* Recurrent layers. The product with the inputs is a dense layer on all positions at once; then,
 * from position to position, the product with the states of all samples, small enough to stay in
 * the second-level cache, and the gates. Backward the same from the last position on. It leaves the
 * gradients of all gates where the gates were, so that those of weights and inputs are dense
 * layers' again, on all positions at once. */
#ifdef TT_ACT_BF16
#include "tensor/simd/bf16_gemm.h"
#else
#include "tensor/simd/panel.h"
#endif
#include "tensor/simd/conv.h"
#include "tensor/simd/table.h"
#include "tensor/simd/vmath.h"

typedef struct layer {
    const tt_recur_args *a;
    tt_conv in, hidden;  /* the dense layers                                                  */
    int64_t wide, rows;  /* gates * h; n * t                                                  */
    const tt_act *forth; /* w_hh in panels of gates, ...                                      */
    const tt_act *back;  /* ... and in panels of states: the halves of what conv_pack makes   */
    tt_act *gate;        /* (n, t, wide); backward: gradients of their sums                   */
    float *extra;        /* (n, t, h): LSTM: cells. GRU: what r scales; backward: its gradient */
    tt_act *state;       /* (n, t, h)                                                         */
    float *step;         /* (n, wide): of a position, the product with the states             */
    tt_act *slope;       /* (n, wide): gradients of that product                              */
    float *dh, *dc;      /* (n, h): what the position behind has to say                       */
    tt_act *before;      /* (n, t, h): the states before each position                        */
    void *dense;         /* scratch of the dense layers                                       */
    void *product;       /* and of the product with the states                                */
} layer;

/* ---- the product with the states: (n, k) by the k rows of b, into (n, columns) ---- */

typedef struct times {
    const tt_act *a;
    int64_t step, k;
    const tt_act *b;
    int64_t columns;
    float *c;
    bool add;
} times;

#ifdef TT_ACT_BF16
static size_t product_scratch(const layer *l, int64_t k)
{
    size_t copy = k == deep(k) ? 0 : (size_t)(l->a->n * deep(k)) * sizeof(tt_act);
    return (copy + 63) / 64 * 64 +
           TT_PROD(gemm_scratch)(min_int(l->a->n, TT_PROD(gemm_block)(k)), k);
}

static int64_t forth_size(const layer *l)
{
    return packed_size(l->a->h, l->wide);
}

static void multiply_states(const layer *l, const times *t)
{
    const int64_t high = deep(t->k);
    gemm g = {.m = l->a->n,
              .n = t->columns,
              .k = t->k,
              .a = t->a,
              .lda = t->step,
              .b = t->b,
              .high = t->k,
              .c = t->c,
              .ldc = t->columns,
              .add = t->add,
              .scratch = l->product};

    if (t->k != high) { /* rows as the product takes them */
        tt_act *to = l->product;
        for (int i = 0; i < l->a->n; i++, to += high) {
            memcpy(to, t->a + i * t->step, (size_t)t->k * sizeof *to);
            memset(to + t->k, 0, (size_t)(high - t->k) * sizeof *to);
        }
        g.a = l->product, g.lda = high;
        g.scratch = (char *)l->product + ((size_t)(l->a->n * high) * sizeof *to + 63) / 64 * 64;
    }
    TT_PROD(gemm)(&g);
}
#else
static void TT_PROD(gemm_release)(void) {}

static size_t product_scratch(const layer *l, int64_t k)
{
    (void)l, (void)k;
    return 0;
}

static int64_t forth_size(const layer *l)
{
    return (int64_t)l->a->h * ceil_div((int)l->wide, VW) * VW;
}

static void multiply_states(const layer *l, const times *t)
{
    multiply(l->a->n, t->columns,
             (product){.k = t->k,
                       .a = t->a,
                       .am = t->step,
                       .ak = 1,
                       .b = t->b,
                       .narrow = true,
                       .c = t->c,
                       .ldc = t->columns,
                       .add = t->add},
             t->k);
}
#endif

static void lay_out(layer *l, cutter *c)
{
    const tt_recur_args *a = l->a;
    size_t state = (size_t)a->n * a->h * sizeof(float);
    size_t in = TT_PROD(conv_scratch)(&l->in, (int)l->rows),
           hidden = TT_PROD(conv_scratch)(&l->hidden, (int)l->rows);

    size_t forth = product_scratch(l, a->h), back = product_scratch(l, l->wide);

    l->step = cut(c, (size_t)a->n * l->wide * sizeof(float));
    l->slope = cut(c, (size_t)a->n * l->wide * sizeof(tt_act));
    l->dh = cut(c, state);
    l->dc = cut(c, state);
    l->before = cut(c, (size_t)l->rows * a->h * sizeof(tt_act));
    l->dense = cut(c, in > hidden ? in : hidden);
    l->product = cut(c, forth > back ? forth : back);
}

/* From c numbers to all gates. */
static tt_conv dense_of(const tt_recur_args *a, int c)
{
    tt_window w = {.c = c, .h = 1, .w = 1, .oh = 1, .ow = 1, .kh = 1, .kw = 1, .groups = 1};

    w.o = tt_recur_gates(a->kind) * a->h;
    w.sh = w.sw = w.dh = w.dw = 1;
    return (tt_conv){.win = w, .layout = TT_NHWC, .bias = true};
}

static layer layer_of(const tt_recur_args *a, cutter *c)
{
    layer l = {.a = a, .in = dense_of(a, a->d), .hidden = dense_of(a, a->h)};

    l.rows = (int64_t)a->n * a->t;
    l.wide = l.in.win.o;
    lay_out(&l, c);
    if (!c->base) return l;
    l.forth = a->packed + TT_PROD(conv_packed)(&l.in);
    l.back = l.forth + forth_size(&l);
    l.gate = (tt_act *)a->saved;
    l.extra = a->saved + l.rows * l.wide;
    l.state = a->last ? (tt_act *)(l.extra + l.rows * a->h) : a->y;
    return l;
}

size_t TT_PROD(recur_packed)(const tt_recur_args *a)
{
    tt_conv in = dense_of(a, a->d), hidden = dense_of(a, a->h);

    return TT_PROD(conv_packed)(&in) + TT_PROD(conv_packed)(&hidden);
}

void TT_PROD(recur_pack)(const tt_recur_args *a, tt_act *packed)
{
    tt_conv in = dense_of(a, a->d), hidden = dense_of(a, a->h);

    TT_PROD(conv_pack)(&in, a->w_ih, packed);
    TT_PROD(conv_pack)(&hidden, a->w_hh, packed + TT_PROD(conv_packed)(&in));
}

size_t TT_PROD(recur_scratch)(const tt_recur_args *a)
{
    cutter c = {0};

    layer_of(a, &c);
    return c.used;
}

/* ---- forward ---- */

static void lstm_gates(const layer *l, int64_t row, const float *step, bool first)
{
    const int64_t h = l->a->h;
    const float *b = l->a->b_hh;
    tt_act *gate = l->gate + row * l->wide, *y = l->state + row * h;
    float *c = l->extra + row * h;

    for (int64_t k = 0; k < h; k += VW) {
        int take = vtake(k, h);
        vf sum[4], was = first ? vzero() : vload_n(c + k - h, take);
        EACH(j, 4)
        sum[j] = vload_n(gate + j * h + k, take) +
                 (vload_n(step + j * h + k, take) + vload_n(b + j * h + k, take));
        vf i = vsigmoid(sum[0]), f = vsigmoid(sum[1]), g = vtanh(sum[2]), o = vsigmoid(sum[3]);
        vf cell = f * was + i * g;
        vstore_n(gate + k, i, take);
        vstore_n(gate + h + k, f, take);
        vstore_n(gate + 2 * h + k, g, take);
        vstore_n(gate + 3 * h + k, o, take);
        vstore_n(c + k, cell, take);
        vstore_n(y + k, o * vtanh(cell), take);
    }
}

static void gru_gates(const layer *l, int64_t row, const float *step, bool first)
{
    const int64_t h = l->a->h;
    const float *b = l->a->b_hh;
    tt_act *gate = l->gate + row * l->wide, *y = l->state + row * h;
    float *scaled = l->extra + row * h;

    for (int64_t k = 0; k < h; k += VW) {
        int take = vtake(k, h);
        vf p[3], q[3], was = first ? vzero() : vload_n(y + k - h, take);
        EACH(j, 3) p[j] = vload_n(gate + j * h + k, take);
        EACH(j, 3) q[j] = vload_n(step + j * h + k, take) + vload_n(b + j * h + k, take);
        vf r = vsigmoid(p[0] + q[0]), z = vsigmoid(p[1] + q[1]), n = vtanh(p[2] + r * q[2]);
        vstore_n(gate + k, r, take);
        vstore_n(gate + h + k, z, take);
        vstore_n(gate + 2 * h + k, n, take);
        vstore_n(scaled + k, q[2], take);
        vstore_n(y + k, (1.0f - z) * n + z * was, take);
    }
}

static void copy(tt_act *to, const tt_act *from, int64_t n)
{
    memcpy(to, from, (size_t)n * sizeof *to);
}

void TT_PROD(recur_forward)(const tt_recur_args *a)
{
    cutter c = {a->scratch, 0};
    layer l = layer_of(a, &c);
    tt_conv_args in = {.n = (int)l.rows,
                       .x = a->x,
                       .w = a->w_ih,
                       .b = a->b_ih,
                       .packed = a->packed,
                       .y = l.gate,
                       .scratch = l.dense};

    TT_PROD(conv_forward)(&l.in, &in);
    memset(l.step, 0, (size_t)a->n * l.wide * sizeof *l.step);
    for (int64_t t = 0; t < a->t; t++) {
        if (t)
            multiply_states(&l, &(times){.a = l.state + (t - 1) * a->h,
                                         .step = (int64_t)a->t * a->h,
                                         .k = a->h,
                                         .b = l.forth,
                                         .columns = l.wide,
                                         .c = l.step});
        for (int64_t i = 0; i < a->n; i++)
            (a->kind == TT_LSTM ? lstm_gates : gru_gates)(&l, i * a->t + t, l.step + i * l.wide,
                                                          !t);
    }
    TT_PROD(gemm_release)();
    for (int64_t i = 0; i < a->n && a->last; i++)
        copy(a->y + i * a->h, l.state + ((i + 1) * a->t - 1) * a->h, a->h);
}

/* ---- backward ---- */

/* Of sample i at one position. `dy` is NULL where the output is not heard of. */
static void lstm_slopes(const layer *l, int64_t i, int64_t row, const tt_act *dy, bool first)
{
    const int64_t h = l->a->h;
    const float *c = l->extra + row * h;
    tt_act *gate = l->gate + row * l->wide, *step = l->slope + i * l->wide;
    float *dh = l->dh + i * h, *dc = l->dc + i * h;

    for (int64_t k = 0; k < h; k += VW) {
        int take = vtake(k, h);
        vf v[4], was = first ? vzero() : vload_n(c + k - h, take), d = vload_n(dh + k, take);
        EACH(j, 4) v[j] = vload_n(gate + j * h + k, take);
        if (dy) d += vload_n(dy + k, take);
        vf out = vtanh(vload_n(c + k, take));
        vf cell = vload_n(dc + k, take) + d * v[3] * (1.0f - out * out);
        vf slope[4] = {cell * v[2] * v[0] * (1.0f - v[0]), cell * was * v[1] * (1.0f - v[1]),
                       cell * v[0] * (1.0f - v[2] * v[2]), d * out * v[3] * (1.0f - v[3])};
        EACH(j, 4)
        {
            vstore_n(gate + j * h + k, slope[j], take);
            vstore_n(step + j * h + k, slope[j], take);
        }
        vstore_n(dc + k, cell * v[1], take);
        vstore_n(dh + k, vzero(), take);
    }
}

static void gru_slopes(const layer *l, int64_t i, int64_t row, const tt_act *dy, bool first)
{
    const int64_t h = l->a->h;
    const tt_act *y = l->state + row * h;
    tt_act *gate = l->gate + row * l->wide, *step = l->slope + i * l->wide;
    float *scaled = l->extra + row * h, *dh = l->dh + i * h;

    for (int64_t k = 0; k < h; k += VW) {
        int take = vtake(k, h);
        vf was = first ? vzero() : vload_n(y + k - h, take), d = vload_n(dh + k, take);
        vf r = vload_n(gate + k, take), z = vload_n(gate + h + k, take),
           n = vload_n(gate + 2 * h + k, take), q = vload_n(scaled + k, take);
        if (dy) d += vload_n(dy + k, take);
        vf dn = d * (1.0f - z) * (1.0f - n * n), dr = dn * q * r * (1.0f - r),
           dz = d * (was - n) * z * (1.0f - z), dq = dn * r;
        vstore_n(gate + k, dr, take);
        vstore_n(gate + h + k, dz, take);
        vstore_n(gate + 2 * h + k, dn, take);
        vstore_n(scaled + k, dq, take);
        vstore_n(step + k, dr, take);
        vstore_n(step + h + k, dz, take);
        vstore_n(step + 2 * h + k, dq, take);
        vstore_n(dh + k, d * z, take);
    }
}

static void through_time(const layer *l)
{
    const tt_recur_args *a = l->a;
    size_t state = (size_t)a->n * a->h * sizeof(float);

    memset(l->dh, 0, state);
    memset(l->dc, 0, state);
    for (int64_t t = a->t - 1; t >= 0; t--) {
        for (int64_t i = 0; i < a->n; i++) {
            int64_t row = i * a->t + t;
            const tt_act *dy = a->dy + (a->last ? i : row) * a->h;
            (a->kind == TT_LSTM ? lstm_slopes
                                : gru_slopes)(l, i, row, a->last && t < a->t - 1 ? NULL : dy, !t);
        }
        if (t)
            multiply_states(l, &(times){.a = l->slope,
                                        .step = l->wide,
                                        .k = l->wide,
                                        .b = l->back,
                                        .columns = a->h,
                                        .c = l->dh,
                                        .add = true});
    }
}

/* The gradients of w_hh: those of a dense layer whose inputs are the states before. */
static void hidden_gradient(const layer *l)
{
    const tt_recur_args *a = l->a;

    for (int64_t row = 0; row < l->rows; row++) {
        tt_act *to = l->before + row * a->h;
        if (row % a->t)
            copy(to, l->state + (row - 1) * a->h, a->h);
        else
            memset(to, 0, (size_t)a->h * sizeof *to);
        if (a->kind == TT_GRU)
            TT_SIMD(narrow)(a->h, l->extra + row * a->h, l->gate + row * l->wide + 2 * a->h, false);
    }
    tt_conv_args d = {.n = (int)l->rows,
                      .x = l->before,
                      .dy = l->gate,
                      .dw = a->dw_hh,
                      .db = a->db_hh,
                      .dw_add = a->dw_add,
                      .scratch = l->dense};
    TT_PROD(conv_backward)(&l->hidden, &d);
}

void TT_PROD(recur_backward)(const tt_recur_args *a)
{
    cutter c = {a->scratch, 0};
    layer l = layer_of(a, &c);
    tt_conv_args d = {.n = (int)l.rows,
                      .x = a->x,
                      .w = a->w_ih,
                      .packed = a->packed,
                      .dy = l.gate,
                      .dx = a->dx,
                      .dx_add = a->dx_add,
                      .dw = a->dw_ih,
                      .db = a->db_ih,
                      .dw_add = a->dw_add,
                      .scratch = l.dense};

    through_time(&l);
    TT_PROD(conv_backward)(&l.in, &d); /* which releases tiles as well */
    if (a->dw_hh) hidden_gradient(&l);
}
