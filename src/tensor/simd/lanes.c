/* lanes: convolution with pooling and relu behind it, samples innermost. See lanes.h for the idea.
 *
 * Packed weights: those of forward, [tile of output channels][c, kh, kw][channel of the tile], then
 * those of the input gradient (lanes_dx.c). Dense layers (lanes_dense.c) read w as it is. */
#include "tensor/simd/lanes.h"

/* ---- The tile ---- */

static ALWAYS_INLINE void tile(const int m, const int n, const row_job *r, int place)
{
    vf sum[ROWS_MOST][2];
    const tap_range t = row_taps(r, place, n);
    const float *x = r->x + place * r->x_step;
    float *y = r->y + place * r->y_step;
    const ptrdiff_t step = r->x_step;

#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int j = 0; j < n; j++)
            sum[i][j] = r->bias  ? vset1(r->bias[i])
                        : r->add ? vload(y + i * r->y_stride + j * r->y_step)
                                 : vzero();
    }
    for (int k = 0; k < r->rows; k++) {
        const ptrdiff_t skip = ((ptrdiff_t)k * r->cols + t.first) * r->depth;
        const int32_t *off = r->off + skip, *end = off + (t.last - t.first) * r->depth;
        const float *w = r->w + skip * m;

        for (; off < end; off++, w += m) {
            const float *p = x + *off;
            vf v[2];

#pragma GCC unroll ALL
            for (int j = 0; j < n; j++) v[j] = vload(p + j * step);
#pragma GCC unroll ALL
            for (int i = 0; i < m; i++) {
                vf s = vset1(w[i]);

#pragma GCC unroll ALL
                for (int j = 0; j < n; j++) sum[i][j] += s * v[j];
            }
        }
    }
#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int j = 0; j < n; j++) /* max(0, x), in this order: a NaN stays one. */
            vstore(y + i * r->y_stride + j * r->y_step,
                   r->relu ? vmax(vzero(), sum[i][j]) : sum[i][j]);
    }
}

static ALWAYS_INLINE void row(const int m, const row_job *r)
{
    int i = 0;

    for (; i + 2 <= r->count; i += 2) tile(m, 2, r, i);
    if (i < r->count) tile(m, 1, r, i);
}

void TT_SIMD(lanes_row)(int m, const row_job *r)
{
    switch (m) {
#define ROW(m_)                                                                                    \
    case m_:                                                                                       \
        if (m_ <= ROWS_MOST) row(m_, r);                                                           \
        break;
        ROW(1) ROW(2) ROW(3) ROW(4) ROW(5) ROW(6) ROW(7) ROW(8) ROW(9) ROW(10) ROW(11) ROW(12)
#undef ROW
    }
}

/* ---- Input ---- */
input TT_SIMD(lanes_input)(const tt_conv *c)
{
    const tt_window *w = &c->win;
    input in;

    in.h = (w->oh - 1) * w->sh + (w->kh - 1) * w->dh + 1;
    in.w = (w->ow - 1) * w->sw + (w->kw - 1) * w->dw + 1;
    in.copy = w->ph || w->pw || in.h > w->h || in.w > w->w;
    if (!in.copy) in.h = w->h, in.w = w->w;
    return in;
}

void TT_SIMD(lanes_input_copy)(const tt_conv *c, input in, const float *x, float *to)
{
    const tt_window *w = &c->win;
    int rows = in.h - w->ph < w->h ? in.h - w->ph : w->h;
    int cols = in.w - w->pw < w->w ? in.w - w->pw : w->w;

    if (rows <= 0 || cols <= 0) return;
    for (int ch = 0; ch < w->c; ch++)
        for (int i = 0; i < rows; i++)
            memcpy(to + (((ptrdiff_t)ch * in.h + w->ph + i) * in.w + w->pw) * VW,
                   x + ((ptrdiff_t)ch * w->h + i) * w->w * VW, (size_t)cols * VB);
}

void TT_SIMD(lanes_taps)(const tt_conv *c, input in, int32_t *off)
{
    const tt_window *w = &c->win;

    for (int ch = 0; ch < w->c; ch++)
        for (int i = 0; i < w->kh; i++)
            for (int j = 0; j < w->kw; j++)
                *off++ = ((ch * in.h + i * w->dh) * in.w + j * w->dw) * VW;
}

/* ---- Forward ---- */

/* One pooled row of one channel, from the rows of outputs at `from`, `stride` floats apart. */
static ALWAYS_INLINE void pool_row(const tt_conv *c, const int kh, const int kw, const float *from,
                                   ptrdiff_t stride, float *y, uint8_t *pick)
{
    for (int x = 0; x < c->pow_; x++, from += c->psw * VW, y += VW, pick += VW) {
        vf best = vload(from);
        vi won = {0};

        for (int i = 0; i < kh; i++)
            for (int j = i == 0; j < kw; j++) {
                vf v = vload(from + i * stride + j * VW);
                vi better = (v > best) | (v != v); /* a NaN wins, and stays */

                best = vpick(better, v, best);
                won = (vi)vpick(better, (vf)((vi){0} + (i * kw + j)), (vf)won);
            }
        if (c->relu) {
            won |= best <= vzero();
            best = vmax(vzero(), best);
        }
        vstore(y, best);
        pick_store(pick, won & 255);
    }
}

static void pool_rows(const tt_conv *c, int m, const float *from, ptrdiff_t stride, float *y,
                      uint8_t *pick)
{
    const ptrdiff_t out = (ptrdiff_t)c->poh * c->pow_ * VW;
    const int cols = used_cols(c);

    for (int i = 0; i < m; i++, from += cols * VW, y += out, pick += out)
        if (c->pkh == 2 && c->pkw == 2)
            pool_row(c, 2, 2, from, stride, y, pick);
        else
            pool_row(c, c->pkh, c->pkw, from, stride, y, pick);
}

static void forward_slice(const tt_conv *c, const tt_conv_args *a, input in, const int32_t *off,
                          float *rows, const float *x, float *y, bool add, uint8_t *pick)
{
    const tt_window *w = &c->win;
    const int taps = w->c * w->kh * w->kw, cols = used_cols(c);
    const int tiles = ceil_div(w->o, ROWS_MOST);
    const int h = c->pool ? c->poh : w->oh;

    for (int i = 0; i < h; i++)
        for (int t = 0; t < tiles; t++) {
            int o = part_start(w->o, tiles, t), m = part_start(w->o, tiles, t + 1) - o;
            row_job r = {.x_step = w->sw * VW,
                         .count = cols,
                         .off = off,
                         .rows = 1,
                         .cols = 1,
                         .depth = taps,
                         .w = a->packed + (ptrdiff_t)o * taps,
                         .bias = a->b ? a->b + o : NULL,
                         .add = add,
                         .y_step = VW};

            if (!c->pool) {
                r.x = x + (ptrdiff_t)i * w->sh * in.w * VW;
                r.y = y + ((ptrdiff_t)o * w->oh + i) * w->ow * VW;
                r.y_stride = (ptrdiff_t)w->oh * w->ow * VW;
                r.relu = c->relu;
                TT_SIMD(lanes_row)(m, &r);
                continue;
            }
            r.y_stride = (ptrdiff_t)cols * VW;
            for (int k = 0; k < c->pkh; k++) {
                r.x = x + (ptrdiff_t)(i * c->psh + k) * w->sh * in.w * VW;
                r.y = rows + k * m * r.y_stride;
                TT_SIMD(lanes_row)(m, &r);
            }
            pool_rows(c, m, rows, m * r.y_stride, y + ((ptrdiff_t)o * h + i) * c->pow_ * VW,
                      pick + ((ptrdiff_t)o * h + i) * c->pow_ * VW);
        }
}

typedef struct forward_scratch {
    int32_t *off;
    float *padded, *rows;
} forward_scratch;
static size_t forward_cut(const tt_conv *c, input in, void *base, forward_scratch *s)
{
    const tt_window *w = &c->win;
    cutter k = {base, 0};

    s->off = cut(&k, (size_t)w->c * w->kh * w->kw * sizeof(int32_t));
    s->padded = in.copy ? cut_vectors(&k, (int64_t)w->c * in.h * in.w) : NULL;
    s->rows = c->pool ? cut_vectors(&k, (int64_t)ROWS_MOST * c->pkh * used_cols(c)) : NULL;
    return k.used;
}

/* y is set, or added to. */
static void forward(const tt_conv *c, const tt_conv_args *a, bool add)
{
    const tt_window *w = &c->win;
    const ptrdiff_t x_size = (ptrdiff_t)w->c * w->h * w->w * VW;
    const ptrdiff_t y_size = (ptrdiff_t)w->o * (c->pool ? c->poh * c->pow_ : w->oh * w->ow) * VW;
    const input in = TT_SIMD(lanes_input)(c);
    forward_scratch s;

    forward_cut(c, in, a->scratch, &s);
    TT_SIMD(lanes_taps)(c, in, s.off);
    if (in.copy) memset(s.padded, 0, (size_t)w->c * in.h * in.w * VB);
    for (int64_t i = 0; i < slices(a->n); i++) {
        const float *x = a->x + i * x_size;

        if (in.copy) {
            TT_SIMD(lanes_input_copy)(c, in, x, s.padded);
            x = s.padded;
        }
        forward_slice(c, a, in, s.off, s.rows, x, a->y + i * y_size, add,
                      c->pool ? a->pick + i * y_size : NULL);
    }
}

static void input_gradient(const tt_conv *c, const tt_conv_args *a)
{
    const tt_window *w = &c->win;
    dx_plan p = TT_SIMD(lanes_dx_plan)(c);

    TT_SIMD(lanes_dx)
    (c, a, &p, a->packed + (ptrdiff_t)w->o * w->c * w->kh * w->kw, a->scratch);
}

void TT_SIMD(lanes_forward)(const tt_conv *c, const tt_conv_args *a)
{
    if (TT_SIMD(lanes_is_dense)(c)) {
        TT_SIMD(lanes_dense_forward)(c, a);
    } else if (c->turned) { /* y is what dx of the convolution would be; dy is read alone */
        tt_conv_args t = *a;
        t.dy = (float *)a->x, t.dx = a->y, t.dx_add = false;
        input_gradient(c, &t);
    } else {
        forward(c, a, false);
    }
}

/* ---- Backward ---- */

/* dy becomes the gradient before the relu, zero where that was closed; its sums are db. */
static void mask(const tt_conv *c, const tt_conv_args *a)
{
    const tt_window *w = &c->win;
    const int outs = c->turned ? w->c : w->o;
    const ptrdiff_t plane = c->pool     ? (ptrdiff_t)c->poh * c->pow_
                            : c->turned ? (ptrdiff_t)w->h * w->w
                                        : (ptrdiff_t)w->oh * w->ow;

    for (int o = 0; o < outs; o++) {
        vf sum = vzero();

        for (int64_t s = 0; s < slices(a->n); s++) {
            const ptrdiff_t at = (s * outs + o) * plane * VW;
            float *dy = a->dy + at;

            for (ptrdiff_t i = 0; i < plane * VW; i += VW) {
                vf g = vload(dy + i);

                if (c->relu) {
                    vi open = c->pool ? pick_load(a->pick + at + i) != 255
                                      : ~(vload(a->y + at + i) <= vzero());

                    g = (vf)((vi)g & open);
                    vstore(dy + i, g);
                }
                sum += g;
            }
        }
        if (a->db) a->db[o] = vsum(sum) + (a->dw_add ? a->db[o] : 0);
    }
}

static void weight_gradient(const tt_conv *c, const tt_conv_args *a)
{
    dw_plan p = TT_SIMD(lanes_dw_plan)(c);

    TT_SIMD(lanes_dw)(c, a, &p, a->scratch);
}

/* Transposed: x and dy change places, and dx is what y of the convolution would be. */
static void turned_backward(const tt_conv *c, const tt_conv_args *a)
{
    tt_conv plain = *c;
    tt_conv_args t = *a;

    plain.relu = plain.turned = false;
    t.x = a->dy, t.dy = (float *)a->x, t.y = a->dx, t.b = NULL;
    if (a->dw) weight_gradient(&plain, &t);
    if (a->dx) forward(&plain, &t, a->dx_add);
}

void TT_SIMD(lanes_backward)(const tt_conv *c, const tt_conv_args *a)
{
    if (TT_SIMD(lanes_is_dense)(c)) {
        TT_SIMD(lanes_dense_backward)(c, a);
        return;
    }
    mask(c, a);
    if (c->turned) {
        turned_backward(c, a);
        return;
    }
    if (a->dw) weight_gradient(c, a);
    if (a->dx) input_gradient(c, a);
}

/* ---- Sizes and packing ---- */
size_t TT_SIMD(lanes_packed)(const tt_conv *c)
{
    const tt_window *w = &c->win;

    if (TT_SIMD(lanes_is_dense)(c)) return 0;
    return (size_t)w->o * w->c * w->kh * w->kw + TT_SIMD(lanes_dx_packed)(c);
}

void TT_SIMD(lanes_pack)(const tt_conv *c, const float *w, float *packed)
{
    const int taps = c->win.c * c->win.kh * c->win.kw, tiles = ceil_div(c->win.o, ROWS_MOST);

    if (TT_SIMD(lanes_is_dense)(c)) return;
    for (int t = 0; t < tiles; t++) {
        int o = part_start(c->win.o, tiles, t), m = part_start(c->win.o, tiles, t + 1) - o;

        for (int k = 0; k < taps; k++)
            for (int i = 0; i < m; i++) *packed++ = w[(ptrdiff_t)(o + i) * taps + k];
    }
    TT_SIMD(lanes_dx_pack)(c, w, packed);
}

size_t TT_SIMD(lanes_scratch)(const tt_conv *c, int n)
{
    dx_plan dx;
    dw_plan dw;
    forward_scratch f;
    const input in = TT_SIMD(lanes_input)(c);
    size_t most, size;

    if (TT_SIMD(lanes_is_dense)(c)) return TT_SIMD(lanes_dense_scratch)(c, n);
    dx = TT_SIMD(lanes_dx_plan)(c);
    dw = TT_SIMD(lanes_dw_plan)(c);
    /* Offsets within a slice are 32 bits wide. */
    TT_ASSERT((int64_t)c->win.c * in.h * in.w * VW <= INT32_MAX);
    TT_ASSERT((int64_t)c->win.o * dx.h * dx.w * VW * 2 <= INT32_MAX);
    most = forward_cut(c, in, NULL, &f);
    if ((size = TT_SIMD(lanes_dx_scratch)(c, &dx)) > most) most = size;
    if ((size = TT_SIMD(lanes_dw_scratch)(c, &dw)) > most) most = size;
    return most;
}
