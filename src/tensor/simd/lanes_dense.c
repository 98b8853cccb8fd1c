/* lanes_dense: dense layers, samples innermost: three matrix products without a copy of the
 * weights.
 *
 *   forward   y  = W x:     rows of W are broadcast as they lie, vectors are slices of x
 *   dx        dx = W^T dy:  W^T in narrow panels, copied as we go, or, where few slices would
 *                           use a copy, W as it lies; vectors are slices of dy
 *   dw        dw = dy x^T:  dy is broadcast as it lies, vectors are rows of x, transposed
 *
 * Each is blocked so that the vectors of one tile stay in L1 while the broadcast side streams by,
 * which asks L2 for 4 bytes a cycle at most. */
#include "tensor/simd/lanes.h"

enum {
    DEPTH = WIDE ? 128 : 256, /* of the sums between visits to memory: 16 or 32 KB of vectors  */
    PANELS = 16,              /* dx: tiles of W^T copied at once                               */
    IN_PLACE = WIDE ? 4 : 0   /* dx: groups of slices for which copying does not pay           */
};

bool TT_SIMD(lanes_is_dense)(const tt_conv *c)
{
    const tt_window *w = &c->win;

    return w->h == 1 && w->w == 1 && w->kh == 1 && w->kw == 1 && w->oh == 1 && w->ow == 1 &&
           !w->ph && !w->pw && !c->pool && !c->turned;
}

/* sum[i][j] += a[i][k] * b[k][j], `depth` times. Strides in floats. */
typedef vf sums[DENSE_ROWS][DENSE_COLS];
static ALWAYS_INLINE void multiply(const int m, const int n, sums sum, int depth, const float *a,
                                   ptrdiff_t a_row, ptrdiff_t a_step, const float *b,
                                   ptrdiff_t b_col, ptrdiff_t b_step)
{
    /* Not unrolled: gcc would mix the rounds and run out of registers. */
#pragma GCC unroll 1
    for (int k = 0; k < depth; k++, a += a_step, b += b_step) {
        vf v[DENSE_COLS];

#pragma GCC unroll ALL
        for (int j = 0; j < n; j++) v[j] = vload(b + j * b_col);
#pragma GCC unroll ALL
        for (int i = 0; i < m; i++) {
            vf s = vset1(a[i * a_row]);

#pragma GCC unroll ALL
            for (int j = 0; j < n; j++) sum[i][j] += s * v[j];
        }
    }
}

/* clang-format off */
#define EACH_TILE(X)                                                                               \
    X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1)                                                \
    X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2)                                                \
    X(1, 3) X(2, 3) X(3, 3) X(4, 3) X(5, 3) X(6, 3)                                                \
    X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 4) X(6, 4)
/* clang-format on */

/* ---- Forward and dx: m features of n slices ---- */
typedef struct slice_job {
    const float *a, *b;
    ptrdiff_t a_row;  /* 0: of W^T, neighbours         */
    ptrdiff_t a_step; /* ... from term to term         */
    ptrdiff_t b_col;  /* from slice to slice           */
    int depth;
    float *y;
    ptrdiff_t y_col;
    const float *bias;
    bool add, relu;
} slice_job;

static ALWAYS_INLINE void slice_tile(const int m, const int n, const slice_job *t)
{
    sums sum;

#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int j = 0; j < n; j++)
            sum[i][j] = t->add    ? vload(t->y + j * t->y_col + i * VW)
                        : t->bias ? vset1(t->bias[i])
                                  : vzero();
    }
    if (t->a_row)
        multiply(m, n, sum, t->depth, t->a, t->a_row, 1, t->b, t->b_col, VW);
    else
        multiply(m, n, sum, t->depth, t->a, 1, t->a_step, t->b, t->b_col, VW);
#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int j = 0; j < n; j++)
            vstore(t->y + j * t->y_col + i * VW, t->relu ? vmax(vzero(), sum[i][j]) : sum[i][j]);
    }
}

static void slice_tile_of(int m, int n, const slice_job *t)
{
    switch (m * 8 + n) {
#define TILE(m_, n_)                                                                               \
    case m_ * 8 + n_:                                                                              \
        if (n_ <= DENSE_COLS) slice_tile(m_, n_, t);                                               \
        break;
        EACH_TILE(TILE)
#undef TILE
    }
}

void TT_SIMD(lanes_dense_forward)(const tt_conv *c, const tt_conv_args *a)
{
    const int in = c->win.c, out = c->win.o, s_count = (int)slices(a->n);
    const int blocks = ceil_div(in, DEPTH), groups = ceil_div(s_count, DENSE_COLS);
    const int tiles = ceil_div(out, DENSE_ROWS);

    for (int k = 0; k < blocks; k++)
        for (int g = 0; g < groups; g++) {
            const int first = part_start(in, blocks, k), s = part_start(s_count, groups, g);
            const int n = part_start(s_count, groups, g + 1) - s;
            slice_job t = {.a_row = in,
                           .depth = part_start(in, blocks, k + 1) - first,
                           .add = k > 0,
                           .b = a->x + ((ptrdiff_t)s * in + first) * VW,
                           .b_col = (ptrdiff_t)in * VW,
                           .y_col = (ptrdiff_t)out * VW,
                           .relu = c->relu && k == blocks - 1};

            for (int i = 0; i < tiles; i++) {
                int o = part_start(out, tiles, i);

                t.a = a->w + (ptrdiff_t)o * in + first;
                t.bias = a->b ? a->b + o : NULL;
                t.y = a->y + ((ptrdiff_t)s * out + o) * VW;
                slice_tile_of(part_start(out, tiles, i + 1) - o, n, &t);
            }
        }
}

/* Rows [o, o + depth) of W, as panels [tile - begin][depth][m]. Row by row, so that each cache line
 * is read once; panels are a bit longer than a multiple of 2 KB, so that they do not share L1's
 * sets. */
enum { PANEL_SIZE = DENSE_ROWS * DEPTH + 16, AHEAD = 8 };
static void copy_panels(const float *w, int in, int tiles, int begin, int end, int o, int depth,
                        float *panels)
{
    int first[PANELS + 1];

    for (int i = begin; i <= end; i++) first[i - begin] = part_start(in, tiles, i);
    for (int k = 0; k < depth; k++) {
        const float *from = w + (ptrdiff_t)(o + k) * in + first[0];
        const int ahead = k + AHEAD < depth ? AHEAD * in : 0;

        for (int i = 0; i < end - begin; i++) {
            const int m = first[i + 1] - first[i];
            float *to = panels + i * PANEL_SIZE + k * m;

            __builtin_prefetch(from + ahead); /* rows are too far apart for the hardware to guess */
            if (m == DENSE_ROWS) /* a copy of fixed size is two instructions, not a call */
                memcpy(to, from, DENSE_ROWS * sizeof *to);
            else
                for (int j = 0; j < m; j++) to[j] = from[j];
            from += m;
        }
    }
}

static void backward_x(const tt_conv *c, const tt_conv_args *a, float *panels)
{
    const int in = c->win.c, out = c->win.o, s_count = (int)slices(a->n);
    const int blocks = ceil_div(out, DEPTH), groups = ceil_div(s_count, DENSE_COLS);
    const int tiles = ceil_div(in, DENSE_ROWS);
    const bool copies = groups > IN_PLACE;

    for (int k = 0; k < blocks; k++)
        for (int begin = 0; begin < tiles; begin += PANELS) {
            const int o = part_start(out, blocks, k), depth = part_start(out, blocks, k + 1) - o;
            const int end = begin + PANELS < tiles ? begin + PANELS : tiles;

            if (copies) copy_panels(a->w, in, tiles, begin, end, o, depth, panels);
            for (int g = 0; g < groups; g++) {
                const int s = part_start(s_count, groups, g);
                const int n = part_start(s_count, groups, g + 1) - s;
                slice_job t = {.depth = depth,
                               .add = k > 0 || a->dx_add,
                               .y_col = (ptrdiff_t)in * VW,
                               .b = a->dy + ((ptrdiff_t)s * out + o) * VW,
                               .b_col = (ptrdiff_t)out * VW};

                for (int i = begin; i < end; i++) {
                    const int f = part_start(in, tiles, i), m = part_start(in, tiles, i + 1) - f;

                    t.a = copies ? panels + (i - begin) * PANEL_SIZE : a->w + (ptrdiff_t)o * in + f;
                    t.a_step = copies ? m : in;
                    t.y = a->dx + ((ptrdiff_t)s * in + f) * VW;
                    slice_tile_of(m, n, &t);
                }
            }
        }
}

/* ---- dw: m rows, n vectors of them ---- */
typedef struct grad_job {
    const float *g;   /* dy of the first row                */
    ptrdiff_t g_step; /* from slice to slice                */
    const float *x;   /* [sample][n * VW]                   */
    int64_t slices;
    float *dw;
    ptrdiff_t row;
    int cols; /* of dw; the last vector may be cut  */
    bool add;
} grad_job;

static ALWAYS_INLINE void grad_tile(const int m, const int n, const grad_job *t)
{
    sums sum;
    const float *g = t->g, *x = t->x;

#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int j = 0; j < n; j++) sum[i][j] = vzero();
    }
    for (int64_t s = 0; s < t->slices; s++, g += t->g_step, x += n * VW * VW)
        multiply(m, n, sum, VW, g, VW, 1, x, VW, n * VW);
#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int j = 0; j < n; j++) {
            float *p = t->dw + i * t->row + j * VW;
            const int cols = t->cols - j * VW;

            if (cols >= VW)
                vstore(p, t->add ? sum[i][j] + vload(p) : sum[i][j]);
            else
                vstore_part(p, t->add ? sum[i][j] + vload_part(p, cols) : sum[i][j], cols);
        }
    }
}

static void grad_tile_of(int m, int n, const grad_job *t)
{
    switch (m * 8 + n) {
#define TILE(m_, n_)                                                                               \
    case m_ * 8 + n_:                                                                              \
        if (n_ <= DENSE_COLS) grad_tile(m_, n_, t);                                                \
        break;
        EACH_TILE(TILE)
#undef TILE
    }
}

/* Features [f, f + cols) of all samples, [sample][n * VW], with zeros for features that are
 * missing. */
static void transpose_features(const tt_conv_args *a, int in, int f, int cols, int n, float *to)
{
    for (int64_t s = 0; s < slices(a->n); s++, to += n * VW * VW)
        for (int j = 0; j < n; j++) {
            const float *x = a->x + (s * in + f + j * VW) * VW;
            const int here = cols - j * VW;
            vf r[VW];

#pragma GCC unroll ALL
            for (int k = 0; k < VW; k++) r[k] = k < here ? vload(x + k * VW) : vzero();
            transpose(r);
#pragma GCC unroll ALL
            for (int k = 0; k < VW; k++) vstore(to + (k * n + j) * VW, r[k]);
        }
}

static void backward_w(const tt_conv *c, const tt_conv_args *a, float *panel)
{
    const int in = c->win.c, out = c->win.o, tiles = ceil_div(out, DENSE_ROWS);

    for (int f = 0; f < in; f += DENSE_COLS * VW) {
        const int cols = in - f < DENSE_COLS * VW ? in - f : DENSE_COLS * VW,
                  n = ceil_div(cols, VW);
        grad_job t = {.g_step = (ptrdiff_t)out * VW,
                      .x = panel,
                      .slices = slices(a->n),
                      .row = in,
                      .cols = cols,
                      .add = a->dw_add};

        transpose_features(a, in, f, cols, n, panel);
        for (int i = 0; i < tiles; i++) {
            int o = part_start(out, tiles, i);

            t.g = a->dy + (ptrdiff_t)o * VW;
            t.dw = a->dw + (ptrdiff_t)o * in + f;
            grad_tile_of(part_start(out, tiles, i + 1) - o, n, &t);
        }
    }
}

/* dy becomes the gradient before the relu; its sums are db. sum: a vector per output. */
static void mask(const tt_conv *c, const tt_conv_args *a, float *sum)
{
    const int out = c->win.o;

    if (!c->relu && !a->db) return;
    memset(sum, 0, (size_t)out * VB);
    for (int64_t s = 0; s < slices(a->n); s++)
        for (int o = 0; o < out; o++) {
            const ptrdiff_t at = (s * out + o) * VW;
            vf g = vload(a->dy + at);

            if (c->relu) {
                g = (vf)((vi)g & ~(vload(a->y + at) <= vzero()));
                vstore(a->dy + at, g);
            }
            vstore(sum + o * VW, vload(sum + o * VW) + g);
        }
    for (int o = 0; a->db && o < out; o++)
        a->db[o] = vsum(vload(sum + o * VW)) + (a->dw_add ? a->db[o] : 0);
}

void TT_SIMD(lanes_dense_backward)(const tt_conv *c, const tt_conv_args *a)
{
    mask(c, a, a->scratch);
    if (a->dw) backward_w(c, a, a->scratch);
    if (a->dx) backward_x(c, a, a->scratch);
}

size_t TT_SIMD(lanes_dense_scratch)(const tt_conv *c, int n)
{
    const int tiles = ceil_div(c->win.c, DENSE_ROWS);
    const size_t dx = (size_t)(tiles < PANELS ? tiles : PANELS) * PANEL_SIZE * sizeof(float);
    const size_t dw = (size_t)slices(n) * VW * DENSE_COLS * VB, db = (size_t)c->win.o * VB;
    const size_t most = dx > dw ? dx : dw;

    return most > db ? most : db;
}
