/* lanes_dw: the gradient of the weights.
 *
 * Dense: every sum is a vector, one lane per sample, and lanes are added up at the end.
 * Sparse, behind pooling: one output of each window has a gradient, a different one in each sample.
 * So the samples are taken one by one, pixels laid out (h, w, c), with c rounded up to whole
 * vectors where that pays: what one gradient is multiplied with is then kh runs of kw * c
 * neighbouring floats, which are the vectors. */
#include "tensor/simd/lanes.h"

enum {
    SUMS_MOST = 8192,                   /* vectors of sums kept at once (L2)                   */
    BAND_MOST = (WIDE ? 24 : 12) << 10, /* bytes of gradients a tile works on (L1)             */
    ROWS_RUN = 7,                       /* sparse: most rows ...                               */
    VECTORS_RUN = 14,                   /* ... and vectors of a row at once                    */
    INPUT_MOST = 24 << 10               /* ... and bytes of samples taken together (L1)        */
};

dw_plan TT_SIMD(lanes_dw_plan)(const tt_conv *c)
{
    const tt_window *w = &c->win;
    const int64_t taps = (int64_t)w->c * w->kh * w->kw;
    /* A vector as wide as a cache line costs two loads unless it is aligned. */
    const bool whole = VB == 64 && w->c > VW / 2;
    const double cost = whole ? 1.1 : VB == 64 ? 2 : 1.55;
    dw_plan p = {.pixel = whole ? ceil_div(w->c, VW) * VW : w->c};
    int64_t room;

    p.run = ceil_div(w->kw * p.pixel, VW);
    /* Estimated from the instructions: a sparse multiplication costs 1.1 to 2 dense ones, and 2
     * more go into finding the place. */
    p.sparse = c->pool && (w->dw == 1 || w->kw == 1) && c->pkh * c->pkw < 255 &&
               cost * VW * ((double)w->kh * p.run + 2) < (double)c->psh * c->psw * taps;
    p.taps = taps > SUMS_MOST / GRAD_ROWS ? SUMS_MOST / GRAD_ROWS : (int)taps;
    room = p.sparse ? SUMS_MOST / ((int64_t)w->kh * p.run) : SUMS_MOST / p.taps;
    p.rows = room < 1 ? 1 : room > w->o ? w->o : (int)room;
    return p;
}

/* Rows of outputs that a tile of channels goes over at a time; behind pooling, of whole windows. */
static int band_rows(const tt_conv *c)
{
    const int most = BAND_MOST / (GRAD_ROWS * used_cols(c) * VB) + 1, unit = c->pool ? c->psh : 1;

    return max_int(most / unit, 1) * unit;
}
static int64_t band_size(const tt_conv *c) /* vectors */
{
    return (int64_t)GRAD_ROWS * band_rows(c) * used_cols(c);
}

typedef struct dw_scratch {
    float *x, *sums;
    int32_t *off;     /* dense: of taps; sparse: of pooled places     */
    float *grad;      /* dense: gradients of a band, spread out       */
    float *at;        /* sparse: where in x each gradient belongs     */
    ptrdiff_t sample; /* sparse: floats from sample to sample in x    */
    ptrdiff_t places; /* ... and in grad and at                       */
} dw_scratch;
static size_t dw_cut(const tt_conv *c, const dw_plan *p, input in, void *base, dw_scratch *s)
{
    const tt_window *w = &c->win;
    cutter k = {base, 0};

    if (p->sparse) {
        /* The last vector of a run may reach over the end. */
        s->sample = ((int64_t)in.h * in.w * p->pixel + VW + VW - 1) / VW * VW;
        s->off = cut(&k, (size_t)c->poh * c->pow_ * sizeof(int32_t));
        /* A line more than needed: strides of whole pages would share L1's sets. */
        s->places = ((int64_t)p->rows * c->poh * c->pow_ + VW - 1) / VW * VW + 16;
        s->x = cut_vectors(&k, s->sample);
        s->grad = cut_vectors(&k, s->places);
        s->at = cut_vectors(&k, s->places);
        s->sums = cut_vectors(&k, (int64_t)p->rows * w->kh * p->run);
        return k.used;
    }
    s->off = cut(&k, (size_t)w->c * w->kh * w->kw * sizeof(int32_t));
    s->x = in.copy ? cut_vectors(&k, (int64_t)w->c * in.h * in.w) : NULL;
    s->sums = cut_vectors(&k, (int64_t)p->rows * p->taps);
    s->grad = c->pool ? cut_vectors(&k, band_size(c)) : NULL;
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

/* Weights at once with m channels: registers are m * n sums, m gradients and one input. */
static ALWAYS_INLINE int grad_taps(const int m)
{
    return min_int((VREGS - 1 - m) / m, GRAD_TAPS);
}

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
        if (m_ <= GRAD_ROWS && n_ <= grad_taps(m_)) grad_tile(m_, n_, j);                          \
        break;
#define TILES(m_) TILE(m_, 1) TILE(m_, 2) TILE(m_, 3) TILE(m_, 4) TILE(m_, 5) TILE(m_, 6)
        TILES(1) TILES(2) TILES(3) TILES(4) TILES(5)
#undef TILES
#undef TILE
    }
}

/* Adds a slice's share to the sums of `rows` channels and `taps` weights. dy: of the first channel.
 */
static void dense_slice(const tt_conv *c, const dw_plan *p, input in, const dw_scratch *s,
                        const float *x, const float *dy, const uint8_t *pick, const int32_t *off,
                        int rows, int taps)
{
    const tt_window *w = &c->win;
    const int h = used_rows(c), cols = used_cols(c), band = band_rows(c);
    const int tiles = ceil_div(rows, GRAD_ROWS);
    const ptrdiff_t plane = (ptrdiff_t)(c->pool ? c->poh * c->pow_ : h * cols) * VW;
    const ptrdiff_t g_row = (ptrdiff_t)cols * VW, g_plane = c->pool ? band * g_row : plane;

    for (int y = 0; y < h; y += band)
        for (int t = 0; t < tiles; t++) {
            const int o = part_start(rows, tiles, t), m = part_start(rows, tiles, t + 1) - o;
            const int groups = ceil_div(taps, grad_taps(m));
            grad_job j = {.x = x + (ptrdiff_t)y * w->sh * in.w * VW,
                          .g = c->pool ? s->grad : dy + o * plane + y * g_row,
                          .x_row = (ptrdiff_t)w->sh * in.w * VW,
                          .g_row = g_row,
                          .g_plane = g_plane,
                          .rows = h - y < band ? h - y : band,
                          .cols = cols,
                          .x_step = w->sw * VW,
                          .stride = (ptrdiff_t)p->taps * VW};

            if (c->pool) /* just the band: it stays in L1 until all taps have read it */
                TT_SIMD(lanes_spread)
            (c, m, y / c->psh, ceil_div(j.rows, c->psh), dy + o * plane, pick + o * plane,
             g_plane / VW, cols, s->grad);
            for (int k = 0; k < groups; k++) {
                int first = part_start(taps, groups, k);

                j.off = off + first;
                j.sums = s->sums + o * j.stride + first * VW;
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

    memset(s->sums, 0, (size_t)rows * p->taps * VB);
    for (int64_t i = 0; i < slices(a->n); i++) {
        const float *x = a->x + i * x_size;
        const ptrdiff_t at = (i * w->o + o) * plane;

        if (in.copy) {
            TT_SIMD(lanes_input_copy)(c, in, x, s->x);
            x = s->x;
        }
        dense_slice(c, p, in, s, x, a->dy + at, c->pool ? a->pick + at : NULL, s->off + first, rows,
                    taps);
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
static void split_samples(const tt_conv *c, const dw_plan *p, input in, const float *x,
                          const dw_scratch *s)
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
        float *to = s->x + ((ptrdiff_t)(w->ph + y) * in.w + w->pw) * p->pixel;

        for (int i = 0; i < outer; i++, from += VW, to += p->pixel) {
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

/* Of one vector of picks, how far from its window's first place each winner is. */
static ALWAYS_INLINE vi pick_shift(const uint8_t *pick, const int32_t *shift, int window)
{
    const vi won = pick_load(pick);
    vi d = {0};

    for (int i = 1; i < window; i++) d |= (won == i) & shift[i];
    return d;
}

/* The gradients of `rows` channels of a slice, and where in x they belong, by sample: so that one
 * sample's are read in one stream. */
static void split_gradients(const tt_conv *c, const dw_scratch *s, const int32_t *shift, int rows,
                            const float *dy, const uint8_t *pick)
{
    const int places = c->poh * c->pow_, all = rows * places, window = c->pkh * c->pkw;
    float at[VW * VW] __attribute__((aligned(64)));

    for (int i = 0, place = 0; i < all; i += VW, dy += VW * VW, pick += VW * VW) {
        const int count = all - i < VW ? all - i : VW;

        for (int k = 0; k < count; k++) {
            const uint8_t *won = pick + k * VW;
            const vi d = window == 4 ? pick_shift(won, shift, 4) : pick_shift(won, shift, window);

            vstore(at + k * VW, (vf)(d + s->off[place]));
            if (++place == places) place = 0;
        }
        if (count == VW) {
            split_block(dy, VW, VW, s->grad + i, s->places);
            split_block(at, VW, VW, s->at + i, s->places);
        } else {
            split_block(dy, VW, count, s->grad + i, s->places);
            split_block(at, VW, count, s->at + i, s->places);
        }
    }
}

typedef struct run_job {
    const float *x;    /* the first sample                                   */
    ptrdiff_t row;     /* floats from row of weights to row of weights       */
    const float *g;    /* its gradients                                      */
    const int32_t *at; /* ... and where in x each of them belongs            */
    int places, samples;
    ptrdiff_t x_step, g_step; /* from sample to sample                       */
    float *sums;
    ptrdiff_t stride; /* from row to row */
} run_job;

static ALWAYS_INLINE void run_tile(const int m, const int n, const run_job *j)
{
    vf sum[ROWS_RUN][VECTORS_RUN];
    const ptrdiff_t row = j->row;
    const float *g = j->g, *x = j->x;
    const int32_t *at = j->at;

#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int k = 0; k < n; k++) sum[i][k] = vload(j->sums + i * j->stride + k * VW);
    }
    for (int sample = 0; sample < j->samples; sample++, x += j->x_step) {
        for (int q = 0; q < j->places; q++) {
            const float *p = x + at[q];
            vf s = vset1(g[q]);

#pragma GCC unroll ALL
            for (int i = 0; i < m; i++, p += row) {
                __asm__("" : "+r"(p)); /* or gcc computes the address of each vector by itself */
#pragma GCC unroll ALL
                for (int k = 0; k < n; k++) sum[i][k] += s * vload(p + k * VW);
            }
        }
        g += j->g_step, at += j->g_step;
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
    const ptrdiff_t channel = c->win.kh * j.stride;

    for (int t = 0; t < groups; t++)
        for (int k = 0; k < cuts; k++) {
            const int row = part_start(c->win.kh, groups, t), v = part_start(p->run, cuts, k);
            const int m = part_start(c->win.kh, groups, t + 1) - row;
            const int n = part_start(p->run, cuts, k + 1) - v;
            run_job o = j;

            o.x += row * j.row + v * VW;
            o.sums += row * j.stride + v * VW;
            for (int i = 0; i < rows; i++, o.g += j.places, o.at += j.places, o.sums += channel)
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
    const int together = max_int(1, INPUT_MOST / (int)(s->sample * sizeof(float)));
    int32_t shift[256] = {0};
    run_job j = {.row = (ptrdiff_t)w->dh * in.w * p->pixel,
                 .places = c->poh * c->pow_,
                 .x_step = s->sample,
                 .g_step = s->places,
                 .sums = s->sums,
                 .stride = (ptrdiff_t)p->run * VW};

    for (int i = 0; i < c->pkh * c->pkw; i++)
        shift[i] = (i / c->pkw * w->sh * in.w + i % c->pkw * w->sw) * p->pixel;
    memset(s->sums, 0, (size_t)(rows * channel) * sizeof(float));
    for (int64_t i = 0; i < slices(a->n); i++) {
        const int samples = a->n - i * VW < VW ? (int)(a->n - i * VW) : VW;

        split_samples(c, p, in, a->x + i * x_size, s);
        split_gradients(c, s, shift, rows, a->dy + (i * w->o + o) * plane,
                        a->pick + (i * w->o + o) * plane);
        for (int n = 0; n < samples; n += together) {
            j.g = s->grad + n * s->places;
            j.at = (const int32_t *)(s->at + n * s->places);
            j.x = s->x + n * s->sample;
            j.samples = samples - n < together ? samples - n : together;
            sparse_sample(c, p, j, rows);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int ch = 0; ch < w->c; ch++)
            for (int y = 0; y < w->kh; y++)
                for (int x = 0; x < w->kw; x++) {
                    float *dw = a->dw + (((ptrdiff_t)(o + i) * w->c + ch) * w->kh + y) * w->kw + x;

                    *dw = s->sums[i * channel + y * j.stride + x * p->pixel + ch] +
                          (a->dw_add ? *dw : 0);
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
            s.off[i] =
                (i / c->pow_ * c->psh * w->sh * in.w + i % c->pow_ * c->psw * w->sw) * p->pixel;
    } else {
        if (in.copy) memset(s.x, 0, (size_t)w->c * in.h * in.w * VB);
        TT_SIMD(lanes_taps)(c, in, s.off);
        if (c->pool) memset(s.grad, 0, (size_t)band_size(c) * VB);
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
