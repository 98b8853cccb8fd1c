/* lanes_dw: the gradient of the weights.
 *
 * Dense: every sum is a vector, one lane per sample, and lanes are added up at the end.
 * Sparse, behind pooling: one output of each window has a gradient, a different one in each sample.
 * So the samples are taken one by one, pixels laid out (h, w, c): what one gradient is multiplied
 * with is then kh runs of kw * c neighbouring floats, which are the vectors. */
#include "tensor/simd/lanes.h"

enum {
    SUMS_MOST = 8192,     /* vectors of sums kept at once (L2)                    */
    BAND_MOST = 12 << 10, /* bytes of gradients a tile of channels works on (L1) */
    ROWS_RUN = 7,         /* sparse: most rows ...                               */
    VECTORS_RUN = 14      /* ... and vectors of a row at once                    */
};

dw_plan TT_SIMD(lanes_dw_plan)(const tt_conv *c)
{
    const tt_window *w = &c->win;
    const int64_t taps = (int64_t)w->c * w->kh * w->kw;
    const int run = ceil_div(w->kw * w->c, VW);
    dw_plan p = {.run = run};
    int64_t room;

    /* Estimated from the instructions: a sparse multiplication costs 1.55 dense ones, and 2 more go
     * into finding the place. */
    p.sparse = c->pool && (w->dw == 1 || w->kw == 1) && c->pkh * c->pkw < 255 &&
               1.55 * VW * ((double)w->kh * run + 2) < (double)c->psh * c->psw * taps;
    p.taps = taps > SUMS_MOST / GRAD_ROWS ? SUMS_MOST / GRAD_ROWS : (int)taps;
    room = p.sparse ? SUMS_MOST / ((int64_t)w->kh * run) : SUMS_MOST / p.taps;
    p.rows = room < 1 ? 1 : room > w->o ? w->o : (int)room;
    return p;
}

typedef struct dw_scratch {
    float *x, *sums;
    int32_t *off;     /* dense: of taps; sparse: of pooled places     */
    float *grad;      /* dense: gradients spread over outputs         */
    ptrdiff_t sample; /* sparse: floats from sample to sample in x    */
} dw_scratch;
static size_t dw_cut(const tt_conv *c, const dw_plan *p, input in, void *base, dw_scratch *s)
{
    const tt_window *w = &c->win;
    cutter k = {base, 0};

    if (p->sparse) {
        /* The last vector of a run may reach over the end. */
        s->sample = ((int64_t)in.h * in.w * w->c + VW + VW - 1) / VW * VW;
        s->off = cut(&k, (size_t)c->poh * c->pow_ * sizeof(int32_t));
        s->x = cut_vectors(&k, s->sample);
        s->sums = cut_vectors(&k, (int64_t)p->rows * w->kh * p->run);
        return k.used;
    }
    s->off = cut(&k, (size_t)w->c * w->kh * w->kw * sizeof(int32_t));
    s->x = in.copy ? cut_vectors(&k, (int64_t)w->c * in.h * in.w) : NULL;
    s->sums = cut_vectors(&k, (int64_t)p->rows * p->taps);
    s->grad = c->pool ? cut_vectors(&k, (int64_t)p->rows * used_rows(c) * used_cols(c)) : NULL;
    return k.used;
}

size_t TT_SIMD(lanes_dw_scratch)(const tt_conv *c, const dw_plan *p)
{
    dw_scratch s;

    return dw_cut(c, p, TT_SIMD(lanes_input)(c), NULL, &s);
}

/* ---- Dense ---- */
typedef struct grad_job {
    const float *x, *g;     /* of the first output of the band        */
    ptrdiff_t x_row, g_row; /* floats from row to row                 */
    ptrdiff_t g_plane;      /* from channel to channel                */
    int rows, cols, x_step;
    const int32_t *off;
    float *sums;
    ptrdiff_t stride; /* from channel to channel                */
} grad_job;

static ALWAYS_INLINE void grad_tile(const int m, const int n, const grad_job *j)
{
    vf sum[GRAD_ROWS][GRAD_TAPS];
    const float *p[GRAD_TAPS], *g = j->g;

#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int k = 0; k < n; k++) sum[i][k] = vload(j->sums + i * j->stride + k * VW);
    }
#pragma GCC unroll ALL
    for (int k = 0; k < n; k++) p[k] = j->x + j->off[k];
    for (int y = 0; y < j->rows; y++) {
        ptrdiff_t at = y * j->x_row;

        for (ptrdiff_t x = 0; x < (ptrdiff_t)j->cols * VW; x += VW, at += j->x_step) {
            vf s[GRAD_ROWS];

#pragma GCC unroll ALL
            for (int i = 0; i < m; i++) s[i] = vload(g + i * j->g_plane + x);
#pragma GCC unroll ALL
            for (int k = 0; k < n; k++) {
                vf v = vload(p[k] + at);

#pragma GCC unroll ALL
                for (int i = 0; i < m; i++) sum[i][k] += s[i] * v;
            }
        }
        g += j->g_row;
    }
#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int k = 0; k < n; k++) vstore(j->sums + i * j->stride + k * VW, sum[i][k]);
    }
}

static void grad_tile_of(int m, int n, const grad_job *j)
{
    switch (m * 8 + n) {
#define TILE(m_, n_)                                                                               \
    case m_ * 8 + n_:                                                                              \
        if (m_ <= GRAD_ROWS && n_ <= GRAD_TAPS) grad_tile(m_, n_, j);                              \
        break;
#define TILES(m_) TILE(m_, 1) TILE(m_, 2) TILE(m_, 3) TILE(m_, 4) TILE(m_, 5) TILE(m_, 6)
        TILES(1) TILES(2) TILES(3) TILES(4)
#undef TILES
#undef TILE
    }
}

/* Adds a slice's share to the sums of `rows` channels and `taps` weights. g: of the first channel.
 */
static void dense_slice(const tt_conv *c, const dw_plan *p, input in, const float *x,
                        const float *g, ptrdiff_t g_plane, const int32_t *off, int rows, int taps,
                        float *sums)
{
    const tt_window *w = &c->win;
    const int h = used_rows(c), cols = used_cols(c);
    const int tiles = ceil_div(rows, GRAD_ROWS), groups = ceil_div(taps, GRAD_TAPS);
    const int band = BAND_MOST / (GRAD_ROWS * cols * VB) + 1;
    const ptrdiff_t g_row = g_plane / h;

    for (int y = 0; y < h; y += band)
        for (int t = 0; t < tiles; t++) {
            const int o = part_start(rows, tiles, t), m = part_start(rows, tiles, t + 1) - o;
            grad_job j = {.x = x + (ptrdiff_t)y * w->sh * in.w * VW,
                          .g = g + o * g_plane + y * g_row,
                          .x_row = (ptrdiff_t)w->sh * in.w * VW,
                          .g_row = g_row,
                          .g_plane = g_plane,
                          .rows = h - y < band ? h - y : band,
                          .cols = cols,
                          .x_step = w->sw * VW,
                          .stride = (ptrdiff_t)p->taps * VW};

            for (int k = 0; k < groups; k++) {
                int first = part_start(taps, groups, k);

                j.off = off + first;
                j.sums = sums + o * j.stride + first * VW;
                grad_tile_of(m, part_start(taps, groups, k + 1) - first, &j);
            }
        }
}

static void dense(const tt_conv *c, const tt_conv_args *a, const dw_plan *p, input in,
                  const dw_scratch *s, int o, int rows, int first, int taps)
{
    const tt_window *w = &c->win;
    const ptrdiff_t all = (ptrdiff_t)w->c * w->kh * w->kw;
    const ptrdiff_t x_size = (ptrdiff_t)w->c * w->h * w->w * VW;
    const ptrdiff_t plane = (c->pool ? c->poh * c->pow_ : w->oh * w->ow) * (ptrdiff_t)VW;
    const ptrdiff_t g_plane = (ptrdiff_t)used_rows(c) * used_cols(c) * VW;

    memset(s->sums, 0, (size_t)rows * p->taps * VB);
    for (int64_t i = 0; i < slices(a->n); i++) {
        const float *x = a->x + i * x_size, *g = a->dy + (i * w->o + o) * plane;

        if (in.copy) {
            TT_SIMD(lanes_input_copy)(c, in, x, s->x);
            x = s->x;
        }
        if (c->pool) {
            TT_SIMD(lanes_spread)
            (c, rows, g, a->pick + (i * w->o + o) * plane, g_plane / VW, used_cols(c), s->grad);
            g = s->grad;
        }
        dense_slice(c, p, in, x, g, g_plane, s->off + first, rows, taps, s->sums);
    }
    for (int i = 0; i < rows; i++) {
        float *dw = a->dw + (o + i) * all + first;

        for (int k = 0; k < taps; k++)
            dw[k] =
                vsum(vload(s->sums + ((ptrdiff_t)i * p->taps + k) * VW)) + (a->dw_add ? dw[k] : 0);
    }
}

/* ---- Sparse ---- */

/* `count` (at most VW) vectors, `step` floats apart, as columns of `to`, whose rows are `row`
 * apart. What is missing is written as zeros. */
static ALWAYS_INLINE void split_block(const float *from, ptrdiff_t step, const int count, float *to,
                                      ptrdiff_t row)
{
    vf r[VW];

#pragma GCC unroll ALL
    for (int k = 0; k < VW; k++) r[k] = k < count ? vload(from + k * step) : vzero();
    transpose(r);
#pragma GCC unroll ALL
    for (int k = 0; k < VW; k++) vstore(to + k * row, r[k]);
}

/* A slice's input, [c][h][w][VW], as [VW][h][w][c], each sample with its padding. Zeros for missing
 * channels go into what follows, and are overwritten when that has its turn. */
static void split_samples(const tt_conv *c, input in, const float *x, const dw_scratch *s)
{
    const tt_window *w = &c->win;
    const int rows = in.h - w->ph < w->h ? in.h - w->ph : w->h;
    const int cols = in.w - w->pw < w->w ? in.w - w->pw : w->w;
    const ptrdiff_t plane = (ptrdiff_t)w->h * w->w * VW;
    /* With one channel neighbouring pixels are neighbours in both, and fill the vectors. */
    const int outer = w->c == 1 ? 1 : cols, inner = w->c == 1 ? cols : w->c;
    const ptrdiff_t step = w->c == 1 ? VW : plane;

    for (int y = 0; y < rows; y++) {
        const float *from = x + (ptrdiff_t)y * w->w * VW;
        float *to = s->x + ((ptrdiff_t)(w->ph + y) * in.w + w->pw) * w->c;

        for (int i = 0; i < outer; i++, from += VW, to += w->c) {
            int j = 0;

            for (; j + VW <= inner; j += VW)
                split_block(from + j * step, step, VW, to + j, s->sample);
            if (inner - j > 4)
                split_block(from + j * step, step, inner - j, to + j, s->sample);
            else if (inner - j > 2)
                split_block(from + j * step, step, inner - j == 3 ? 3 : 4, to + j, s->sample);
            else if (inner > j)
                split_block(from + j * step, step, inner - j == 1 ? 1 : 2, to + j, s->sample);
        }
    }
}

typedef struct run_job {
    const float *x;       /* one sample                                         */
    ptrdiff_t row;        /* floats from row of weights to row of weights       */
    const float *g;       /* its gradients, VW apart                            */
    const uint8_t *pick;  /* ... and which place of the window each belongs to  */
    const int32_t *place; /* of a window's first place in x                     */
    const int32_t *shift; /* from there to the place that won                   */
    int places;
    float *sums;
    ptrdiff_t stride; /* from row to row */
} run_job;

static ALWAYS_INLINE void run_tile(const int m, const int n, const run_job *j)
{
    vf sum[ROWS_RUN][VECTORS_RUN];
    const ptrdiff_t row = j->row;
    const float *g = j->g, *x = j->x;
    const uint8_t *pick = j->pick;
    const int32_t *place = j->place, *end = place + j->places, *shift = j->shift;

#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int k = 0; k < n; k++) sum[i][k] = vload(j->sums + i * j->stride + k * VW);
    }
    for (; place < end; place++, g += VW, pick += VW) {
        const float *p = x + (*place + shift[*pick]);
        vf s = vset1(*g);

#pragma GCC unroll ALL
        for (int i = 0; i < m; i++, p += row) {
            __asm__("" : "+r"(p)); /* or gcc computes the address of each vector by itself */
#pragma GCC unroll ALL
            for (int k = 0; k < n; k++) sum[i][k] += s * vload(p + k * VW);
        }
    }
#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int k = 0; k < n; k++) vstore(j->sums + i * j->stride + k * VW, sum[i][k]);
    }
}

static void run_tile_of(int m, int n, const run_job *j)
{
    switch (m * 16 + n) {
#define TILE(m_, n_)                                                                               \
    case m_ * 16 + n_:                                                                             \
        if (m_ * n_ <= RUN_MOST) run_tile(m_, n_, j);                                              \
        break;
/* clang-format off */
#define TILES(m_)                                                                                  \
    TILE(m_, 1) TILE(m_, 2) TILE(m_, 3) TILE(m_, 4) TILE(m_, 5) TILE(m_, 6) TILE(m_, 7)            \
    TILE(m_, 8) TILE(m_, 9) TILE(m_, 10) TILE(m_, 11) TILE(m_, 12) TILE(m_, 13) TILE(m_, 14)
        /* clang-format on */
        TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) TILES(7)
#undef TILES
#undef TILE
    }
}

/* One sample's share in the sums of `rows` channels. j: all but the weights, of the first channel.
 */
static void sparse_sample(const tt_conv *c, const dw_plan *p, run_job j, int rows)
{
    const int cuts = ceil_div(p->run, VECTORS_RUN), most = ceil_div(p->run, cuts);
    const int groups = ceil_div(c->win.kh, RUN_MOST / most < ROWS_RUN ? RUN_MOST / most : ROWS_RUN);
    const ptrdiff_t plane = (ptrdiff_t)j.places * VW, channel = c->win.kh * j.stride;

    for (int t = 0; t < groups; t++)
        for (int k = 0; k < cuts; k++) {
            const int row = part_start(c->win.kh, groups, t), v = part_start(p->run, cuts, k);
            const int m = part_start(c->win.kh, groups, t + 1) - row;
            const int n = part_start(p->run, cuts, k + 1) - v;
            run_job o = j;

            o.x += row * j.row + v * VW;
            o.sums += row * j.stride + v * VW;
            for (int i = 0; i < rows; i++, o.g += plane, o.pick += plane, o.sums += channel)
                run_tile_of(m, n, &o);
        }
}

static void sparse(const tt_conv *c, const tt_conv_args *a, const dw_plan *p, input in,
                   const dw_scratch *s, int o, int rows)
{
    const tt_window *w = &c->win;
    const ptrdiff_t x_size = (ptrdiff_t)w->c * w->h * w->w * VW;
    const ptrdiff_t plane = (ptrdiff_t)c->poh * c->pow_ * VW,
                    channel = (ptrdiff_t)w->kh * p->run * VW;
    int32_t shift[256] = {0};
    run_job j = {.row = (ptrdiff_t)w->dh * in.w * w->c,
                 .place = s->off,
                 .shift = shift,
                 .places = c->poh * c->pow_,
                 .sums = s->sums,
                 .stride = (ptrdiff_t)p->run * VW};

    for (int i = 0; i < c->pkh * c->pkw; i++)
        shift[i] = (i / c->pkw * w->sh * in.w + i % c->pkw * w->sw) * w->c;
    memset(s->sums, 0, (size_t)(rows * channel) * sizeof(float));
    for (int64_t i = 0; i < slices(a->n); i++) {
        const int samples = a->n - i * VW < VW ? (int)(a->n - i * VW) : VW;

        split_samples(c, in, a->x + i * x_size, s);
        for (int n = 0; n < samples; n++) {
            j.g = a->dy + (i * w->o + o) * plane + n;
            j.pick = a->pick + (i * w->o + o) * plane + n;
            j.x = s->x + n * s->sample;
            sparse_sample(c, p, j, rows);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int ch = 0; ch < w->c; ch++)
            for (int y = 0; y < w->kh; y++)
                for (int x = 0; x < w->kw; x++) {
                    float *dw = a->dw + (((ptrdiff_t)(o + i) * w->c + ch) * w->kh + y) * w->kw + x;

                    *dw =
                        s->sums[i * channel + y * j.stride + x * w->c + ch] + (a->dw_add ? *dw : 0);
                }
}

void TT_SIMD(lanes_dw)(const tt_conv *c, const tt_conv_args *a, const dw_plan *p, void *scratch)
{
    const tt_window *w = &c->win;
    const int taps = w->c * w->kh * w->kw;
    const input in = TT_SIMD(lanes_input)(c);
    dw_scratch s;

    dw_cut(c, p, in, scratch, &s);
    if (p->sparse) {
        memset(s.x, 0, (size_t)s.sample * VB);
        for (int i = 0; i < c->poh * c->pow_; i++)
            s.off[i] = (i / c->pow_ * c->psh * w->sh * in.w + i % c->pow_ * c->psw * w->sw) * w->c;
    } else {
        if (in.copy) memset(s.x, 0, (size_t)w->c * in.h * in.w * VB);
        TT_SIMD(lanes_taps)(c, in, s.off);
        if (c->pool) memset(s.grad, 0, (size_t)p->rows * used_rows(c) * used_cols(c) * VB);
    }
    for (int o = 0; o < w->o; o += p->rows) {
        int rows = w->o - o < p->rows ? w->o - o : p->rows;

        if (p->sparse)
            sparse(c, a, p, in, &s, o, rows);
        else
            for (int k = 0; k < taps; k += p->taps)
                dense(c, a, p, in, &s, o, rows, k, taps - k < p->taps ? taps - k : p->taps);
    }
}
