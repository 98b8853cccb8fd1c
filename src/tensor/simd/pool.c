/* Pooling. With inner > 1 (NHWC, LANES) a vector holds neighbours of one pixel; with inner == 1 (PLAIN)
 * output rows are swept once per element of the window, which the compiler turns into vectors. */
#include "tensor/simd/table.h"

/* Which elements k of a window of `count`, at output o, lie inside 0 .. size. */
typedef struct span {
    int from, to;
} span;

static int ceil_div(int a, int b) { return a > 0 ? (a + b - 1) / b : 0; } /* never below 0 */

static span window_span(int o, int stride, int pad, int dilation, int count, int size)
{
    int first = o * stride - pad, to = ceil_div(size - first, dilation);
    span s = {ceil_div(-first, dilation), to < count ? to : count};
    if (s.from > s.to) s.from = s.to;
    return s;
}

static span rows_of(const tt_window *w, int oy)
{
    return window_span(oy, w->sh, w->ph, w->dh, w->kh, w->h);
}

static span columns_of(const tt_window *w, int ox)
{
    return window_span(ox, w->sw, w->pw, w->dw, w->kw, w->w);
}

/* The other way round: the outputs whose element kx lies inside the row. */
static span outputs_of(const tt_window *w, int kx)
{
    int first = kx * w->dw - w->pw, to = ceil_div(w->w - first, w->sw);
    span s = {ceil_div(-first, w->sw), to < w->ow ? to : w->ow};
    if (s.from > s.to) s.from = s.to;
    return s;
}

static int64_t x_size(const tt_pool_args *a) { return (int64_t)a->win.h * a->win.w * a->inner; }
static int64_t y_size(const tt_pool_args *a) { return (int64_t)a->win.oh * a->win.ow * a->inner; }

/* Of the input pixel under window element (ky, kx) of output (oy, ox): pixels from the image's first. */
static int64_t pixel(const tt_window *w, int oy, int ox, int ky, int kx)
{
    return (int64_t)(oy * w->sh - w->ph + ky * w->dh) * w->w + (ox * w->sw - w->pw + kx * w->dw);
}

/* 1 / the number of elements that count. */
static float share_of(const tt_pool_args *a, int oy, int ox)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy), xs = columns_of(w, ox);
    int64_t n = (int64_t)(ys.to - ys.from) * (xs.to - xs.from);

    if (a->count_pad) { /* all before, and behind as much as before */
        ys = window_span(oy, w->sh, w->ph, w->dh, w->kh, w->h + w->ph);
        xs = window_span(ox, w->sw, w->pw, w->dw, w->kw, w->w + w->pw);
        n = (int64_t)ys.to * xs.to;
    }
    return n ? 1 / (float)n : 0;
}

/* ---- Maximum ---- */

typedef uint8_t vb __attribute__((vector_size(VW)));

static ALWAYS_INLINE void store_pick(uint8_t *p, vi pick, int n)
{
    vb b = __builtin_convertvector(pick, vb);
    memcpy(p, &b, n == VW ? VW : (size_t)n);
}

static ALWAYS_INLINE vi load_pick(const uint8_t *p)
{
    vb b;
    memcpy(&b, p, VW);
    return __builtin_convertvector(b, vi);
}

/* The first element is best until beaten, so that a window of -infinity has a winner too. */
static ALWAYS_INLINE void max_pixel(const tt_pool_args *a, const float *x, int oy, int ox, float *y,
                                    uint8_t *pick)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy), xs = columns_of(w, ox);
    bool empty = ys.from == ys.to || xs.from == xs.to;

    for (int64_t i = 0; i < a->inner; i += VW) {
        int n = vtake(i, a->inner), first = empty ? 255 : ys.from * w->kw + xs.from;
        vf best = empty ? vzero() : vset1(-INFINITY);
        vi won = first - (vi){0};
        for (int ky = ys.from; ky < ys.to; ky++)
            for (int kx = xs.from; kx < xs.to; kx++) {
                vf v = vload_n(x + pixel(w, oy, ox, ky, kx) * a->inner + i, n);
                vi beats = (v > best) | (v != v);
                best = vpick(beats, v, best);
                won = (beats & (ky * w->kw + kx)) | (~beats & won);
            }
        vstore_n(y + i, best, n);
        if (pick) store_pick(pick + i, won, n);
    }
}

static void max_row(const tt_pool_args *a, const float *x, int oy, float *restrict y,
                    uint8_t *restrict pick)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy);

    for (int ox = 0; ox < w->ow; ox++) {
        span xs = columns_of(w, ox);
        bool empty = ys.from == ys.to || xs.from == xs.to;
        y[ox] = empty ? 0 : -INFINITY;
        if (pick) pick[ox] = empty ? 255 : (uint8_t)(ys.from * w->kw + xs.from);
    }
    for (int ky = ys.from; ky < ys.to; ky++)
        for (int kx = 0; kx < w->kw; kx++) {
            span os = outputs_of(w, kx);
            const float *restrict row = x + pixel(w, oy, 0, ky, kx);
            uint8_t k = (uint8_t)(ky * w->kw + kx);
            for (int ox = os.from; pick && ox < os.to; ox++) {
                float v = row[(int64_t)ox * w->sw];
                bool beats = (v > y[ox]) | (v != v);
                y[ox] = beats ? v : y[ox];
                pick[ox] = beats ? k : pick[ox];
            }
            for (int ox = os.from; !pick && ox < os.to; ox++) {
                float v = row[(int64_t)ox * w->sw];
                y[ox] = (v > y[ox]) | (v != v) ? v : y[ox];
            }
        }
}

void TT_SIMD(maxpool_forward)(const tt_pool_args *a)
{
    const tt_window *w = &a->win;

    TT_ASSERT(w->kh * w->kw <= 255);
    for (int64_t o = 0; o < a->outer; o++) {
        const float *x = a->x + o * x_size(a);
        for (int oy = 0; oy < w->oh; oy++) {
            int64_t at = o * y_size(a) + (int64_t)oy * w->ow * a->inner;
            uint8_t *pick = a->pick ? a->pick + at : NULL;
            if (a->inner == 1) max_row(a, x, oy, a->y + at, pick);
            else
                for (int ox = 0; ox < w->ow; ox++)
                    max_pixel(a, x, oy, ox, a->y + at + ox * a->inner,
                              pick ? pick + ox * a->inner : NULL);
        }
    }
}

/* Each input pixel lies under one window exactly, so gradients are stored rather than added. */
static bool tiles(const tt_window *w)
{
    return w->dh == 1 && w->dw == 1 && w->sh == w->kh && w->sw == w->kw && !w->ph && !w->pw &&
           w->oh * w->kh == w->h && w->ow * w->kw == w->w;
}

static ALWAYS_INLINE void max_pixel_back(const tt_pool_args *a, float *dx, int oy, int ox,
                                         const float *dy, const uint8_t *pick, bool add)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy), xs = columns_of(w, ox);
    int64_t i = 0;

    for (; i + VW <= a->inner; i += VW) {
        vi won = load_pick(pick + i);
        vf g = vload(dy + i);
        for (int ky = ys.from; ky < ys.to; ky++)
            for (int kx = xs.from; kx < xs.to; kx++) {
                float *at = dx + pixel(w, oy, ox, ky, kx) * a->inner + i;
                vput_n(at, (vf)((vi)g & (won == ky * w->kw + kx)), VW, add);
            }
    }
    for (; i < a->inner; i++)
        for (int ky = ys.from; ky < ys.to; ky++)
            for (int kx = xs.from; kx < xs.to; kx++) {
                float *at = dx + pixel(w, oy, ox, ky, kx) * a->inner + i;
                float g = pick[i] == ky * w->kw + kx ? dy[i] : 0;
                *at = add ? *at + g : g;
            }
}

static void max_row_back(const tt_pool_args *a, float *dx, int oy, const float *dy,
                         const uint8_t *pick, const int *offset)
{
    const tt_window *w = &a->win;

    for (int ox = 0; ox < w->ow; ox++)
        if (pick[ox] != 255) dx[pixel(w, oy, ox, 0, 0) + offset[pick[ox]]] += dy[ox];
}

void TT_SIMD(maxpool_backward)(const tt_pool_args *a)
{
    const tt_window *w = &a->win;
    bool store = a->inner > 1 && !a->dx_add && tiles(w);
    int offset[256];

    for (int k = 0; k < w->kh * w->kw; k++)
        offset[k] = k / w->kw * w->dh * w->w + k % w->kw * w->dw;
    for (int64_t o = 0; o < a->outer; o++) {
        float *dx = a->dx + o * x_size(a);
        if (!a->dx_add && !store) memset(dx, 0, (size_t)x_size(a) * sizeof *dx);
        for (int oy = 0; oy < w->oh; oy++) {
            int64_t at = o * y_size(a) + (int64_t)oy * w->ow * a->inner;
            if (a->inner == 1) max_row_back(a, dx, oy, a->dy + at, a->pick + at, offset);
            else
                for (int ox = 0; ox < w->ow; ox++, at += a->inner) {
                    if (store) max_pixel_back(a, dx, oy, ox, a->dy + at, a->pick + at, false);
                    else max_pixel_back(a, dx, oy, ox, a->dy + at, a->pick + at, true);
                }
        }
    }
}

/* ---- Average ---- */

/* Row by row, then over rows: a whole image's sum loses little. */
static void avg_pixel(const tt_pool_args *a, const float *x, int oy, int ox, float *y)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy), xs = columns_of(w, ox);
    float share = share_of(a, oy, ox);

    for (int64_t i = 0; i < a->inner; i += VW) {
        int n = vtake(i, a->inner);
        vf sum = vzero();
        for (int ky = ys.from; ky < ys.to; ky++) {
            vf row = vzero();
            for (int kx = xs.from; kx < xs.to; kx++)
                row += vload_n(x + pixel(w, oy, ox, ky, kx) * a->inner + i, n);
            sum += row;
        }
        vstore_n(y + i, sum * share, n);
    }
}

static float run_sum(const float *x, int n)
{
    vf sum = vzero();

    for (int i = 0; i < n; i += VW) sum += vload_n(x + i, vtake(i, n));
    return vsum(sum);
}

static void avg_row(const tt_pool_args *a, const float *x, int oy, float *restrict y)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy);

    for (int ox = 0; ox < w->ow; ox++) y[ox] = 0;
    for (int ky = ys.from; ky < ys.to; ky++) {
        if (w->dw == 1 && w->kw >= VW) { /* whole images, mostly */
            for (int ox = 0; ox < w->ow; ox++) {
                span xs = columns_of(w, ox);
                y[ox] += run_sum(x + pixel(w, oy, ox, ky, xs.from), xs.to - xs.from);
            }
            continue;
        }
        for (int kx = 0; kx < w->kw; kx++) {
            span os = outputs_of(w, kx);
            const float *restrict row = x + pixel(w, oy, 0, ky, kx);
            for (int ox = os.from; ox < os.to; ox++) y[ox] += row[(int64_t)ox * w->sw];
        }
    }
    for (int ox = 0; ox < w->ow; ox++) y[ox] *= share_of(a, oy, ox);
}

void TT_SIMD(avgpool_forward)(const tt_pool_args *a)
{
    const tt_window *w = &a->win;

    for (int64_t o = 0; o < a->outer; o++) {
        const float *x = a->x + o * x_size(a);
        for (int oy = 0; oy < w->oh; oy++) {
            float *y = a->y + o * y_size(a) + (int64_t)oy * w->ow * a->inner;
            if (a->inner == 1) avg_row(a, x, oy, y);
            else
                for (int ox = 0; ox < w->ow; ox++) avg_pixel(a, x, oy, ox, y + ox * a->inner);
        }
    }
}

static ALWAYS_INLINE void avg_pixel_back(const tt_pool_args *a, float *dx, int oy, int ox,
                                         const float *dy, bool add)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy), xs = columns_of(w, ox);
    float share = share_of(a, oy, ox);

    for (int ky = ys.from; ky < ys.to; ky++)
        for (int kx = xs.from; kx < xs.to; kx++) {
            float *at = dx + pixel(w, oy, ox, ky, kx) * a->inner;
            if (a->inner == 1) {
                *at = add ? *at + *dy * share : *dy * share;
                continue;
            }
            for (int64_t i = 0; i < a->inner; i += VW) {
                int n = vtake(i, a->inner);
                vput_n(at + i, vload_n(dy + i, n) * share, n, add);
            }
        }
}

void TT_SIMD(avgpool_backward)(const tt_pool_args *a)
{
    const tt_window *w = &a->win;
    bool store = !a->dx_add && tiles(w);

    for (int64_t o = 0; o < a->outer; o++) {
        const float *dy = a->dy + o * y_size(a);
        float *dx = a->dx + o * x_size(a);
        if (!a->dx_add && !store) memset(dx, 0, (size_t)x_size(a) * sizeof *dx);
        for (int oy = 0; oy < w->oh; oy++)
            for (int ox = 0; ox < w->ow; ox++, dy += a->inner) {
                if (store) avg_pixel_back(a, dx, oy, ox, dy, false);
                else avg_pixel_back(a, dx, oy, ox, dy, true);
            }
    }
}
