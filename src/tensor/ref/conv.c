/* Convolution, from its definition. Each number is one loop nest that gathers what it depends on.
 */
#include "tensor/ref/ref.h"

tt_layout REF(conv_layout)(const tt_window *w, int n)
{
    (void)w, (void)n;
    return TT_PLAIN;
}

size_t REF(conv_packed)(const tt_conv *c)
{
    (void)c;
    return 0;
}

void REF(conv_pack)(const tt_conv *c, const float *w, tt_act *packed)
{
    (void)c, (void)w, (void)packed; /* 0 floats: weights are used as they are */
}

size_t REF(conv_scratch)(const tt_conv *c, int n)
{
    (void)c, (void)n;
    return 0;
}

/* Where things lie. Channel `i` of a group is channel g * (c / groups) + i of the input. */
static int64_t x_at(const tt_window *w, int n, int c, int y, int x)
{
    return (((int64_t)n * w->c + c) * w->h + y) * w->w + x;
}
static int64_t y_at(const tt_window *w, int n, int o, int y, int x)
{
    return (((int64_t)n * w->o + o) * w->oh + y) * w->ow + x;
}
static int64_t w_at(const tt_window *w, int o, int i, int ky, int kx)
{
    return (((int64_t)o * (w->c / w->groups) + i) * w->kh + ky) * w->kw + kx;
}

static double forward_at(const tt_window *w, const tt_conv_args *a, int n, int o, int oy, int ox)
{
    int per = w->c / w->groups, first = o / (w->o / w->groups) * per;
    double sum = a->b ? a->b[o] : 0;

    for (int i = 0; i < per; i++)
        for (int ky = 0; ky < w->kh; ky++)
            for (int kx = 0; kx < w->kw; kx++) {
                int y = oy * w->sh - w->ph + ky * w->dh, x = ox * w->sw - w->pw + kx * w->dw;
                if (y < 0 || y >= w->h || x < 0 || x >= w->w) continue;
                sum += get(a->x[x_at(w, n, first + i, y, x)]) * weight(a->w[w_at(w, o, i, ky, kx)]);
            }
    return sum;
}

static void turned_forward(const tt_conv *c, const tt_conv_args *a);
static void turned_backward(const tt_conv *c, const tt_conv_args *a);

void REF(conv_forward)(const tt_conv *c, const tt_conv_args *a)
{
    const tt_window *w = &c->win;

    TT_ASSERT(c->layout == TT_PLAIN && !c->pool);
    if (c->turned) {
        turned_forward(c, a);
        return;
    }
    for (int n = 0; n < a->n; n++)
        for (int o = 0; o < w->o; o++)
            for (int oy = 0; oy < w->oh; oy++)
                for (int ox = 0; ox < w->ow; ox++) {
                    double v = forward_at(w, a, n, o, oy, ox);
                    set(&a->y[y_at(w, n, o, oy, ox)], c->relu && v < 0 ? 0 : v);
                }
}

/* The output row (or column) that kernel row k takes input row `at` to, or -1. */
static int output_of(int at, int k, int stride, int pad, int dilation, int count)
{
    int from = at + pad - k * dilation;
    return from >= 0 && from % stride == 0 && from / stride < count ? from / stride : -1;
}

static double dx_at(const tt_window *w, const tt_conv_args *a, int n, int c, int y, int x)
{
    int per = w->c / w->groups, outs = w->o / w->groups, first = c / per * outs;
    double sum = 0;

    for (int o = first; o < first + outs; o++)
        for (int ky = 0; ky < w->kh; ky++)
            for (int kx = 0; kx < w->kw; kx++) {
                int oy = output_of(y, ky, w->sh, w->ph, w->dh, w->oh);
                int ox = output_of(x, kx, w->sw, w->pw, w->dw, w->ow);
                if (oy < 0 || ox < 0) continue;
                sum +=
                    get(a->dy[y_at(w, n, o, oy, ox)]) * weight(a->w[w_at(w, o, c % per, ky, kx)]);
            }
    return sum;
}

static double dw_at(const tt_window *w, const tt_conv_args *a, int o, int i, int ky, int kx)
{
    int per = w->c / w->groups, c = o / (w->o / w->groups) * per + i;
    double sum = 0;

    for (int n = 0; n < a->n; n++)
        for (int oy = 0; oy < w->oh; oy++)
            for (int ox = 0; ox < w->ow; ox++) {
                int y = oy * w->sh - w->ph + ky * w->dh, x = ox * w->sw - w->pw + kx * w->dw;
                if (y < 0 || y >= w->h || x < 0 || x >= w->w) continue;
                sum += get(a->x[x_at(w, n, c, y, x)]) * get(a->dy[y_at(w, n, o, oy, ox)]);
            }
    return sum;
}

static double db_at(const tt_window *w, const tt_conv_args *a, int o)
{
    double sum = 0;

    for (int n = 0; n < a->n; n++)
        for (int oy = 0; oy < w->oh; oy++)
            for (int ox = 0; ox < w->ow; ox++) sum += get(a->dy[y_at(w, n, o, oy, ox)]);
    return sum;
}

void REF(conv_backward)(const tt_conv *c, const tt_conv_args *a)
{
    const tt_window *w = &c->win;
    int64_t outputs = (int64_t)a->n * w->o * w->oh * w->ow;

    TT_ASSERT(c->layout == TT_PLAIN && !c->pool);
    if (c->turned) {
        turned_backward(c, a);
        return;
    }
    for (int64_t i = 0; c->relu && i < outputs; i++)
        if (get(a->y[i]) <= 0) set(&a->dy[i], 0);
    for (int n = 0; a->dx && n < a->n; n++)
        for (int ch = 0; ch < w->c; ch++)
            for (int y = 0; y < w->h; y++)
                for (int x = 0; x < w->w; x++)
                    put(&a->dx[x_at(w, n, ch, y, x)], dx_at(w, a, n, ch, y, x), a->dx_add);
    for (int o = 0; a->dw && o < w->o; o++)
        for (int i = 0; i < w->c / w->groups; i++)
            for (int ky = 0; ky < w->kh; ky++)
                for (int kx = 0; kx < w->kw; kx++)
                    put_float(&a->dw[w_at(w, o, i, ky, kx)], dw_at(w, a, o, i, ky, kx), a->dw_add);
    for (int o = 0; a->db && o < w->o; o++) put_float(&a->db[o], db_at(w, a, o), a->dw_add);
}

/* ---- Transposed: input and output, and with them x and dy, change places ---- */

static void turned_forward(const tt_conv *c, const tt_conv_args *a)
{
    const tt_window *w = &c->win;
    const tt_conv_args of = {.n = a->n, .w = a->w, .dy = (tt_act *)a->x}; /* which is read alone */

    for (int n = 0; n < a->n; n++)
        for (int ch = 0; ch < w->c; ch++)
            for (int y = 0; y < w->h; y++)
                for (int x = 0; x < w->w; x++) {
                    double v = dx_at(w, &of, n, ch, y, x) + (a->b ? a->b[ch] : 0);
                    set(&a->y[x_at(w, n, ch, y, x)], c->relu && v < 0 ? 0 : v);
                }
}

static void turned_backward(const tt_conv *c, const tt_conv_args *a)
{
    const tt_window *w = &c->win;
    int64_t plane = (int64_t)w->h * w->w, outputs = a->n * w->c * plane;
    const tt_conv_args of = {.n = a->n, .w = a->w, .x = a->dy, .dy = (tt_act *)a->x};

    for (int64_t i = 0; c->relu && i < outputs; i++)
        if (get(a->y[i]) <= 0) set(&a->dy[i], 0);
    for (int n = 0; a->dx && n < a->n; n++)
        for (int o = 0; o < w->o; o++)
            for (int y = 0; y < w->oh; y++)
                for (int x = 0; x < w->ow; x++)
                    put(&a->dx[y_at(w, n, o, y, x)], forward_at(w, &of, n, o, y, x), a->dx_add);
    for (int o = 0; a->dw && o < w->o; o++)
        for (int i = 0; i < w->c; i++)
            for (int ky = 0; ky < w->kh; ky++)
                for (int kx = 0; kx < w->kw; kx++)
                    put_float(&a->dw[w_at(w, o, i, ky, kx)], dw_at(w, &of, o, i, ky, kx),
                              a->dw_add);
    for (int ch = 0; a->db && ch < w->c; ch++) {
        double sum = 0;
        for (int n = 0; n < a->n; n++)
            for (int64_t i = 0; i < plane; i++)
                sum += get(a->dy[((int64_t)n * w->c + ch) * plane + i]);
        put_float(&a->db[ch], sum, a->dw_add);
    }
}
