/* Pooling. With inner > 1 (NHWC, LANES) a vector holds neighbours of one pixel; with inner == 1
 * (PLAIN) it holds neighbouring outputs of one row, as far as their windows lie inside, and the
 * rest goes singly. */
#include "tensor/simd/table.h"

/* Which elements k of a window of `count`, at output o, lie inside 0 .. size. */
typedef struct span {
    int from, to;
} span;

static int ceil_div(int a, int b)
{
    return a > 0 ? (a + b - 1) / b : 0;
} /* never below 0 */

static span window_span(int o, int stride, int pad, int dilation, int count, int size)
{
    int first = o * stride - pad;

    if (first >= 0 && first + (count - 1) * dilation < size) return (span){0, count}; /* mostly */
    int to = ceil_div(size - first, dilation);
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

/* The outputs of a row whose windows lie inside it from end to end. */
static span inner_outputs(const tt_window *w)
{
    int last = w->w - 1 + w->pw - (w->kw - 1) * w->dw;
    span s = {ceil_div(w->pw, w->sw), last < 0 ? 0 : last / w->sw + 1};
    if (s.to > w->ow) s.to = w->ow;
    if (s.from > s.to) s.from = s.to;
    return s;
}

static int64_t x_size(const tt_pool_args *a)
{
    return (int64_t)a->win.h * a->win.w * a->inner;
}
static int64_t y_size(const tt_pool_args *a)
{
    return (int64_t)a->win.oh * a->win.ow * a->inner;
}

/* Of the input pixel under window element (ky, kx) of output (oy, ox): pixels from the image's
 * first. */
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

/* n elements of a row, `stride` apart. */
static ALWAYS_INLINE vf load_apart(const tt_act *p, int stride, int n)
{
    vi at;
    vf v = vzero();

    if (stride == 1) return vload_n(p, n);
    if (stride == 2) { /* the second load ends with the last element: nothing behind it is read */
        vf low = vload_n(p, 2 * n - 1 < VW ? 2 * n - 1 : VW);
        vf high = 2 * n > VW ? vload_n(p + VW - 1, 2 * n - VW) : v;
        for (int i = 0; i < VW; i++) at[i] = i < VW / 2 ? 2 * i : 2 * i + 1;
        return __builtin_shuffle(low, high, at);
    }
    for (int i = 0; i < n; i++) v[i] = act_get(p[(int64_t)i * stride]);
    return v;
}

/* How many outputs from ox on one vector of PLAIN takes: those inside, or one. */
static int take_outputs(span in, int ox)
{
    return ox >= in.from && ox < in.to ? vtake(ox, in.to) : 1;
}

/* ---- Maximum ---- */

typedef uint8_t vb __attribute__((vector_size(VW)));

static ALWAYS_INLINE void store_pick(uint8_t *p, vi pick, int n)
{
    vb b = __builtin_convertvector(pick, vb);
    memcpy(p, &b, n == VW ? VW : (size_t)n);
}

static ALWAYS_INLINE vi load_pick(const uint8_t *p, int n)
{
    vb b = {0};
    memcpy(&b, p, n == VW ? VW : (size_t)n);
    return __builtin_convertvector(b, vi);
}

/* n windows at once, x being where the first begins: of neighbours of one pixel (apart == 0), or of
 * outputs of one row. The first element is best until beaten, so that a window of -infinity has a
 * winner too. */
static ALWAYS_INLINE void max_windows(const tt_window *w, span ys, span xs, int kw, const tt_act *x,
                                      int64_t inner, int n, int apart, tt_act *y, uint8_t *pick)
{
    bool empty = ys.from == ys.to || xs.from == xs.to;
    int first = empty ? 255 : ys.from * kw + xs.from;
    vf best = empty ? vzero() : vset1(-INFINITY);
    vi won = first - (vi){0};

    for (int ky = ys.from; ky < ys.to; ky++) {
        const tt_act *at = x + ((int64_t)ky * w->dh * w->w + xs.from * w->dw) * inner;
        for (int kx = xs.from; kx < xs.to; kx++, at += w->dw * inner) {
            vf v = apart ? load_apart(at, apart, n) : vload_n(at, n);
            vi beats = (v > best) | (v != v);
            best = vpick(beats, v, best);
            won = (beats & (ky * kw + kx)) | (~beats & won);
        }
    }
    vstore_n(y, best, n);
    if (pick) store_pick(pick, won, n);
}

/* The usual windows, where nothing is cut off, get code of their own: their loops unroll. */
static bool whole(const tt_window *w, span ys, span xs, int size)
{
    return w->kh == size && w->kw == size && ys.to - ys.from == size && xs.to - xs.from == size;
}

static ALWAYS_INLINE void max_pixel(const tt_pool_args *a, const tt_act *x, int oy, span ys, int ox,
                                    tt_act *y, uint8_t *pick)
{
    const tt_window *w = &a->win;
    span xs = columns_of(w, ox), two = {0, 2}, three = {0, 3};
    const tt_act *at = x + pixel(w, oy, ox, 0, 0) * a->inner;
    bool is_two = whole(w, ys, xs, 2), is_three = whole(w, ys, xs, 3);

    for (int64_t i = 0; i < a->inner; i += VW) {
        int n = vtake(i, a->inner);
        uint8_t *to = pick ? pick + i : NULL;
        if (is_two)
            max_windows(w, two, two, 2, at + i, a->inner, n, 0, y + i, to);
        else if (is_three)
            max_windows(w, three, three, 3, at + i, a->inner, n, 0, y + i, to);
        else
            max_windows(w, ys, xs, w->kw, at + i, a->inner, n, 0, y + i, to);
    }
}

static void max_row(const tt_pool_args *a, const tt_act *x, int oy, span in, tt_act *y,
                    uint8_t *pick)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy);

    for (int ox = 0, n; ox < w->ow; ox += n) {
        const tt_act *at = x + pixel(w, oy, ox, 0, 0);
        span xs = columns_of(w, ox);
        uint8_t *to = pick ? pick + ox : NULL;
        n = take_outputs(in, ox);
        if (w->sw == 1)
            max_windows(w, ys, xs, w->kw, at, 1, n, 1, y + ox, to);
        else if (w->sw == 2)
            max_windows(w, ys, xs, w->kw, at, 1, n, 2, y + ox, to);
        else
            max_windows(w, ys, xs, w->kw, at, 1, n, w->sw, y + ox, to);
    }
}

void TT_SIMD(maxpool_forward)(const tt_pool_args *a)
{
    const tt_window *w = &a->win;
    span in = inner_outputs(w);

    TT_ASSERT(w->kh * w->kw <= 255);
    for (int64_t o = 0; o < a->outer; o++) {
        const tt_act *x = a->x + o * x_size(a);
        for (int oy = 0; oy < w->oh; oy++) {
            int64_t at = o * y_size(a) + (int64_t)oy * w->ow * a->inner;
            uint8_t *pick = a->pick ? a->pick + at : NULL;
            if (a->inner == 1)
                max_row(a, x, oy, in, a->y + at, pick);
            else
                for (int ox = 0; ox < w->ow; ox++)
                    max_pixel(a, x, oy, rows_of(w, oy), ox, a->y + at + ox * a->inner,
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

static ALWAYS_INLINE void max_window_back(const tt_window *w, span ys, span xs, int kw, vi won,
                                          vf dy, tt_act *dx, int64_t inner, int n, bool add)
{
    for (int ky = ys.from; ky < ys.to; ky++) {
        tt_act *at = dx + ((int64_t)ky * w->dh * w->w + xs.from * w->dw) * inner;
        for (int kx = xs.from; kx < xs.to; kx++, at += w->dw * inner)
            vput_n(at, (vf)((vi)dy & (won == ky * kw + kx)), n, add);
    }
}

static ALWAYS_INLINE void max_pixel_back(const tt_pool_args *a, tt_act *dx, int oy, int ox,
                                         const tt_act *dy, const uint8_t *pick, bool add)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy), xs = columns_of(w, ox), two = {0, 2};
    bool is_two = whole(w, ys, xs, 2);

    dx += pixel(w, oy, ox, 0, 0) * a->inner;
    for (int64_t i = 0; i < a->inner; i += VW) {
        int n = vtake(i, a->inner);
        vi won = load_pick(pick + i, n);
        vf g = vload_n(dy + i, n);
        if (is_two)
            max_window_back(w, two, two, 2, won, g, dx + i, a->inner, n, add);
        else
            max_window_back(w, ys, xs, w->kw, won, g, dx + i, a->inner, n, add);
    }
}

static void max_row_back(const tt_pool_args *a, tt_act *dx, int oy, const tt_act *dy,
                         const uint8_t *pick, const int *offset)
{
    const tt_window *w = &a->win;

    for (int ox = 0; ox < w->ow; ox++)
        if (pick[ox] != 255)
            act_put(dx + pixel(w, oy, ox, 0, 0) + offset[pick[ox]], act_get(dy[ox]), true);
}

void TT_SIMD(maxpool_backward)(const tt_pool_args *a)
{
    const tt_window *w = &a->win;
    bool store = a->inner > 1 && !a->dx_add && tiles(w);
    int offset[256];

    for (int k = 0; k < w->kh * w->kw; k++)
        offset[k] = k / w->kw * w->dh * w->w + k % w->kw * w->dw;
    for (int64_t o = 0; o < a->outer; o++) {
        tt_act *dx = a->dx + o * x_size(a);
        if (!a->dx_add && !store) memset(dx, 0, (size_t)x_size(a) * sizeof *dx);
        for (int oy = 0; oy < w->oh; oy++) {
            int64_t at = o * y_size(a) + (int64_t)oy * w->ow * a->inner;
            if (a->inner == 1)
                max_row_back(a, dx, oy, a->dy + at, a->pick + at, offset);
            else
                for (int ox = 0; ox < w->ow; ox++, at += a->inner) {
                    if (store)
                        max_pixel_back(a, dx, oy, ox, a->dy + at, a->pick + at, false);
                    else
                        max_pixel_back(a, dx, oy, ox, a->dy + at, a->pick + at, true);
                }
        }
    }
}

/* ---- Average ---- */

/* As max_windows; row by row, then over rows, so that a whole image's sum loses little. */
static ALWAYS_INLINE vf sum_windows(const tt_window *w, span ys, span xs, const tt_act *x,
                                    int64_t inner, int n, int apart)
{
    vf sum = vzero();

    for (int ky = ys.from; ky < ys.to; ky++) {
        const tt_act *at = x + ((int64_t)ky * w->dh * w->w + xs.from * w->dw) * inner;
        vf row = vzero();
        for (int kx = xs.from; kx < xs.to; kx++, at += w->dw * inner)
            row += apart ? load_apart(at, apart, n) : vload_n(at, n);
        sum += row;
    }
    return sum;
}

static void avg_pixel(const tt_pool_args *a, const tt_act *x, int oy, int ox, tt_act *y)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy), xs = columns_of(w, ox);
    const tt_act *at = x + pixel(w, oy, ox, 0, 0) * a->inner;
    float share = share_of(a, oy, ox);

    for (int64_t i = 0; i < a->inner; i += VW) {
        int n = vtake(i, a->inner);
        vstore_n(y + i, sum_windows(w, ys, xs, at + i, a->inner, n, 0) * share, n);
    }
}

/* One window of PLAIN, in vectors along its rows: whole images, mostly. */
static float sum_wide(const tt_window *w, span ys, span xs, const tt_act *x)
{
    vf sum = vzero();

    for (int ky = ys.from; ky < ys.to; ky++) {
        const tt_act *row = x + (int64_t)ky * w->dh * w->w;
        vf part = vzero();
        for (int kx = xs.from; kx < xs.to; kx += VW) part += vload_n(row + kx, vtake(kx, xs.to));
        sum += part;
    }
    return vsum(sum);
}

static void avg_row(const tt_pool_args *a, const tt_act *x, int oy, span in, tt_act *y)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy);

    for (int ox = 0, n; ox < w->ow; ox += n) {
        const tt_act *at = x + pixel(w, oy, ox, 0, 0);
        span xs = columns_of(w, ox);
        vf sum;
        n = take_outputs(in, ox);
        if (n == 1 && w->dw == 1)
            sum = vset1(sum_wide(w, ys, xs, at));
        else if (w->sw == 1)
            sum = sum_windows(w, ys, xs, at, 1, n, 1);
        else if (w->sw == 2)
            sum = sum_windows(w, ys, xs, at, 1, n, 2);
        else
            sum = sum_windows(w, ys, xs, at, 1, n, w->sw);
        vstore_n(y + ox, sum * share_of(a, oy, ox), n); /* the same for all that lie inside */
    }
}

void TT_SIMD(avgpool_forward)(const tt_pool_args *a)
{
    const tt_window *w = &a->win;
    span in = inner_outputs(w);

    for (int64_t o = 0; o < a->outer; o++) {
        const tt_act *x = a->x + o * x_size(a);
        for (int oy = 0; oy < w->oh; oy++) {
            tt_act *y = a->y + o * y_size(a) + (int64_t)oy * w->ow * a->inner;
            if (a->inner == 1)
                avg_row(a, x, oy, in, y);
            else
                for (int ox = 0; ox < w->ow; ox++) avg_pixel(a, x, oy, ox, y + ox * a->inner);
        }
    }
}

static ALWAYS_INLINE void avg_pixel_back(const tt_pool_args *a, tt_act *dx, int oy, int ox,
                                         const tt_act *dy, bool add)
{
    const tt_window *w = &a->win;
    span ys = rows_of(w, oy), xs = columns_of(w, ox);
    float share = share_of(a, oy, ox);

    for (int ky = ys.from; ky < ys.to; ky++) {
        tt_act *at = dx + pixel(w, oy, ox, ky, xs.from) * a->inner;
        for (int kx = xs.from; kx < xs.to; kx++, at += w->dw * a->inner) {
            if (a->inner == 1) {
                act_put(at, act_get(*dy) * share, add);
                continue;
            }
            for (int64_t i = 0; i < a->inner; i += VW) {
                int n = vtake(i, a->inner);
                vput_n(at + i, vload_n(dy + i, n) * share, n, add);
            }
        }
    }
}

void TT_SIMD(avgpool_backward)(const tt_pool_args *a)
{
    const tt_window *w = &a->win;
    bool store = !a->dx_add && tiles(w);

    for (int64_t o = 0; o < a->outer; o++) {
        const tt_act *dy = a->dy + o * y_size(a);
        tt_act *dx = a->dx + o * x_size(a);
        if (!a->dx_add && !store) memset(dx, 0, (size_t)x_size(a) * sizeof *dx);
        for (int oy = 0; oy < w->oh; oy++)
            for (int ox = 0; ox < w->ow; ox++, dy += a->inner) {
                if (store)
                    avg_pixel_back(a, dx, oy, ox, dy, false);
                else
                    avg_pixel_back(a, dx, oy, ox, dy, true);
            }
    }
}
