/* Convolution and dense layers in bf16, as products of matrices: a row of the first is what one
 * output pixel reads, gathered from all kernel taps, with zeros where padding is. With one tap and
 * no padding that is the image itself, and nothing is gathered.
 *
 *   y, and dx with input and output changed:  (pixels, taps * c) by packed weights (taps * c, o)
 *   dw                                        (o, pixels) by (pixels, taps * c), a block of pixels
 *                                             at a time, of which both are packed on the way
 */
#include "tensor/simd/bf16_gemm.h"
#include "tensor/simd/table.h"

tt_layout TT_PROD(conv_layout)(const tt_window *w, int n)
{
    (void)w, (void)n;
    return TT_NHWC;
}

/* ---- packed weights: those of forward for each group, then those of backward ---- */

static int64_t packed_forward(const tt_window *w)
{
    int64_t taps = (int64_t)w->kh * w->kw;
    return w->groups * packed_size(taps * (w->c / w->groups), w->o / w->groups);
}

static int64_t packed_backward(const tt_window *w)
{
    int64_t taps = (int64_t)w->kh * w->kw;
    return w->groups * packed_size(taps * (w->o / w->groups), w->c / w->groups);
}

size_t TT_PROD(conv_packed)(const tt_conv *c)
{
    return (size_t)(packed_forward(&c->win) + packed_backward(&c->win));
}

void TT_PROD(conv_pack)(const tt_conv *c, const float *w, tt_act *packed)
{
    const tt_window *win = &c->win;
    int64_t per = win->c / win->groups, outs = win->o / win->groups, taps = win->kh * win->kw;
    tt_act *forth = packed, *back = packed + packed_forward(win);

    for (int g = 0; g < win->groups; g++, w += outs * per * taps) {
        TT_PROD(gemm_pack_weights)(w, false, per, taps, outs, forth);
        TT_PROD(gemm_pack_weights)(w, true, outs, taps, per, back);
        forth += packed_size(taps * per, outs);
        back += packed_size(taps * outs, per);
    }
}

/* ---- gathering ---- */

/* Numbers of a row, and how many of them there are of `count` pixels. */
static int64_t row_size(const gather *g)
{
    return (int64_t)g->kh * g->kw * (g->ic / g->groups);
}
static int64_t pixels_of(const gather *g)
{
    return (int64_t)g->n * g->oh * g->ow;
}

/* A row is the pixel itself. */
static bool as_it_lies(const gather *g)
{
    return g->kh == 1 && g->kw == 1 && g->sh == 1 && g->sw == 1 && !g->ph && !g->pw &&
           g->ih == g->oh && g->iw == g->ow;
}

/* ---- gathering rows ---- */

/* Few numbers in two pieces, which may overlap. */
static ALWAYS_INLINE tt_act *copy(tt_act *to, const tt_act *from, int64_t n)
{
    if (n >= 16) {
        memcpy(to, from, (size_t)n * sizeof *to);
    } else if (n >= 8) {
        memcpy(to, from, 8 * sizeof *to);
        memcpy(to + n - 8, from + n - 8, 8 * sizeof *to);
    } else if (n >= 4) {
        memcpy(to, from, 4 * sizeof *to);
        memcpy(to + n - 4, from + n - 4, 4 * sizeof *to);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = from[i];
    }
    return to + n;
}

static ALWAYS_INLINE tt_act *blank(tt_act *to, int64_t n)
{
    memset(to, 0, (size_t)n * sizeof *to);
    return to + n;
}

/* Where tap k of position p reads, or -1. Turned windows have their taps in reverse, so that the
 * next tap reads further on here, too. */
static ALWAYS_INLINE int source(bool turned, int p, int k, int taps, int stride, int pad,
                                int dilation, int len)
{
    int at = turned ? p + pad - (taps - 1 - k) * dilation : p * stride - pad + k * dilation;

    if (turned && (at < 0 || at % stride)) return -1;
    if (turned) at /= stride;
    return at >= 0 && at < len ? at : -1;
}

/* The row of output (y, x) of the image at `in`. */
static void gather_row(const gather *g, const tt_act *in, int y, int x, tt_act *to, tt_act *end)
{
    const int64_t per = g->ic / g->groups;
    const int left = g->turned ? x + g->pw - (g->kw - 1) : x * g->sw - g->pw;
    const bool joined = g->groups == 1 && g->dw == 1 && (!g->turned || g->sw == 1) && left >= 0 &&
                        left + g->kw <= g->iw;

    for (int ky = 0; ky < g->kh; ky++) {
        int iy = source(g->turned, y, ky, g->kh, g->sh, g->ph, g->dh, g->ih);
        if (iy < 0) {
            to = blank(to, g->kw * per);
            continue;
        }
        const tt_act *row = in + (int64_t)iy * g->iw * g->ic;
        if (joined) {
            to = copy(to, row + (int64_t)left * g->ic, g->kw * per);
            continue;
        }
        for (int kx = 0; kx < g->kw; kx++) {
            int ix = source(g->turned, x, kx, g->kw, g->sw, g->pw, g->dw, g->iw);
            to = ix >= 0 ? copy(to, row + (int64_t)ix * g->ic, per) : blank(to, per);
        }
    }
    for (; to < end; to++) *to = act_of(0);
}

/* Rows of m pixels from `first` on, of one group: where they lie, and how far apart. They are of
 * whole `align`s of numbers. */
static const tt_act *rows_at(const gather *g, int group, int64_t first, int m, int64_t align,
                             tt_act *room, int64_t *step)
{
    const int64_t k = row_size(g), high = whole(k, align), area = (int64_t)g->oh * g->ow;
    const tt_act *in = g->in + (int64_t)group * (g->ic / g->groups);

    *step = g->ic;
    if (as_it_lies(g) && k == high) return in + first * g->ic;
    *step = high;
    int y = (int)(first % area / g->ow), x = (int)(first % g->ow);
    in += first / area * g->ih * g->iw * g->ic;
    for (int i = 0; i < m; i++) {
        gather_row(g, in, y, x, room + i * high, room + (i + 1) * high);
        if (++x < g->ow) continue;
        x = 0;
        if (++y < g->oh) continue;
        y = 0;
        in += (int64_t)g->ih * g->iw * g->ic;
    }
    return room;
}

/* ---- y and dx ---- */

typedef struct bench {
    int block;
    int64_t chunk; /* of a row, at a time                                              */
    tt_act *rows;
    void *wide;
    int64_t step;
    float *sum; /* (block, step): a panel, or of rows in several chunks all that there are */
} bench;

static bench bench_of(const gather *g, cutter *c)
{
    const int64_t k = row_size(g), chunk = TT_PROD(gemm_chunk)(k);
    bench b = {.block = TT_PROD(gemm_block)(chunk), .chunk = chunk};

    if (pixels_of(g) < b.block) b.block = max_int((int)pixels_of(g), 1);
    if (!as_it_lies(g) || k != deep(k))
        b.rows = cut(c, (size_t)(b.block * deep(k)) * sizeof *b.rows);
    b.wide = cut(c, TT_PROD(gemm_scratch)(b.block, chunk));
    b.step = k > chunk ? whole(g->oc / g->groups, WIDTH) : WIDTH;
    b.sum = cut(c, (size_t)(b.block * b.step) * sizeof *b.sum);
    return b;
}

/* Sums to their places: `n` numbers of each of m pixels. */
static void settle(const gather *g, const float *sum, int64_t step, int m, int n, const float *bias,
                   tt_act *out)
{
    for (int i = 0; i < m; i++, sum += step, out += g->oc)
        for (int j = 0; j < n; j += VW) {
            int take = vtake(j, n);
            vf v = vload_n(sum + j, take);
            if (bias) v += vload_n(bias + j, take);
            if (g->add) v += vload_n(out + j, take);
            vstore_n(out + j, g->relu ? vrelu(v) : v, take);
        }
}

/* Rows of m pixels from `first` on, of one group, by all of its weights. */
static void block_sums(const gather *g, const bench *b, int group, int64_t first, int m)
{
    const int outs = g->oc / g->groups;
    const int64_t k = row_size(g);
    const tt_act *packed = g->packed + group * packed_size(k, outs);
    int64_t step;
    const tt_act *a = rows_at(g, group, first, m, DEPTH, b->rows, &step);

    for (int64_t p = 0; p < k; p += b->chunk) {
        bool last = p + b->chunk >= k;
        rows r = TT_PROD(gemm_rows)(m, last ? k - p : b->chunk, a + p, step, b->wide);
        for (int o = 0; o < outs; o += WIDTH) {
            int n = min_int(WIDTH, outs - o), wide = (int)whole(n, COLUMN), at = group * outs + o;
            float *sum = b->sum + (b->step > WIDTH ? o : 0);
            TT_PROD(gemm_panel)
            (&r, packed + deep(k) * o + p * wide, n, wide, sum, b->step, p > 0);
            if (last)
                settle(g, sum, b->step, m, n, g->bias ? g->bias + at : NULL,
                       g->out + first * g->oc + at);
        }
    }
}

static void gather_sums(const gather *g, void *scratch)
{
    const int64_t all = pixels_of(g);
    cutter c = {scratch, 0};
    bench b = bench_of(g, &c);

    for (int64_t first = 0; first < all; first += b.block)
        for (int group = 0; group < g->groups; group++)
            block_sums(g, &b, group, first, all - first < b.block ? (int)(all - first) : b.block);
}

void TT_PROD(conv_forward)(const tt_conv *c, const tt_conv_args *a)
{
    gather g = c->turned ? gather_backward(c, a->n) : gather_forward(c, a->n);

    g.in = a->x, g.out = a->y, g.bias = a->b, g.relu = c->relu;
    g.packed = a->packed + (c->turned ? packed_forward(&c->win) : 0);
    gather_sums(&g, a->scratch);
    TT_PROD(gemm_release)();
}

/* ---- dw ---- */

/* Pixels of a block. With every block dw is read and written, which tiles would wait for. */
enum { PIXELS = DEPTH > 2 ? 1024 : 512 };

typedef struct weights {
    int block, outs; /* pixels; output channels at a time */
    tt_act *rows, *dy, *packed;
    void *wide;
    float *sum; /* (outs, taps, c); NULL: dw itself */
} weights;

static weights weights_of(const gather *g, cutter *c)
{
    const int64_t k = row_size(g), outs = g->oc / g->groups;
    weights w = {.block =
                     (int)deep(pixels_of(g) < PIXELS ? max_int((int)pixels_of(g), 1) : PIXELS)};

    w.outs = min_int((int)outs, TT_PROD(gemm_block)(w.block));
    if (!as_it_lies(g)) w.rows = cut(c, (size_t)(w.block * k) * sizeof *w.rows);
    w.dy = cut(c, (size_t)w.outs * (size_t)w.block * sizeof *w.dy);
    w.packed = cut(c, (size_t)packed_size(w.block, k) * sizeof *w.packed);
    w.wide = cut(c, TT_PROD(gemm_scratch)(w.outs, w.block));
    if (g->kh * g->kw > 1) w.sum = cut(c, (size_t)(outs * k) * sizeof *w.sum);
    return w;
}

/* (taps, c) of each output channel to (c, taps). */
static void turn_taps(const float *sum, int64_t outs, int64_t taps, int64_t c, float *dw, bool add)
{
    for (int64_t o = 0; o < outs; o++, sum += taps * c)
        for (int64_t i = 0; i < c; i++)
            for (int64_t t = 0; t < taps; t++, dw++)
                *dw = add ? *dw + sum[t * c + i] : sum[t * c + i];
}

static void weight_sums(const gather *g, const tt_act *dy, float *dw, bool add, void *scratch)
{
    const int64_t k = row_size(g), all = pixels_of(g), outs = g->oc / g->groups;
    cutter c = {scratch, 0};
    weights w = weights_of(g, &c);

    for (int group = 0; group < g->groups; group++, dw += outs * k) {
        for (int64_t first = 0; first < all; first += w.block) {
            int m = all - first < w.block ? (int)(all - first) : w.block;
            int64_t step;
            const tt_act *x = rows_at(g, group, first, m, 1, w.rows, &step);
            TT_PROD(gemm_pack)(x, step, 1, m, k, w.packed);
            for (int64_t o = 0; o < outs; o += w.outs) {
                int count = outs - o < w.outs ? (int)(outs - o) : w.outs;
                turn(dy + first * g->oc + group * outs + o, g->oc, m, count, w.dy, w.block,
                     deep(m));
                TT_PROD(gemm)
                (&(gemm){.m = count,
                         .n = k,
                         .k = m,
                         .a = w.dy,
                         .lda = w.block,
                         .b = w.packed,
                         .high = m,
                         .c = (w.sum ? w.sum : dw) + o * k,
                         .ldc = k,
                         .add = first || (add && !w.sum),
                         .scratch = w.wide});
            }
        }
        if (w.sum) turn_taps(w.sum, outs, (int64_t)g->kh * g->kw, g->ic / g->groups, dw, add);
    }
}

/* ---- backward ---- */

void TT_PROD(conv_backward)(const tt_conv *c, const tt_conv_args *a)
{
    const tt_window *w = &c->win;
    const bool turned = c->turned; /* then x and dy change places */
    const int64_t pixels = (int64_t)a->n * (turned ? w->h * w->w : w->oh * w->ow);
    const int outs = turned ? w->c : w->o;

    if (c->relu) relu_mask(pixels * outs, a->y, a->dy);
    if (a->db) bias_gradient(pixels, outs, a->dy, a->db, a->dw_add);
    if (a->dw) {
        gather g = gather_forward(c, a->n);
        g.in = turned ? a->dy : a->x;
        weight_sums(&g, turned ? a->x : a->dy, a->dw, a->dw_add, a->scratch);
    }
    if (a->dx) {
        gather g = turned ? gather_forward(c, a->n) : gather_backward(c, a->n);
        g.in = a->dy, g.out = a->dx, g.add = a->dx_add;
        g.packed = a->packed + (turned ? 0 : packed_forward(w));
        gather_sums(&g, a->scratch);
    }
    TT_PROD(gemm_release)();
}

size_t TT_PROD(conv_scratch)(const tt_conv *c, int n)
{
    gather forth = gather_forward(c, n), back = gather_backward(c, n);
    cutter f = {0}, b = {0}, w = {0};

    bench_of(&forth, &f);
    bench_of(&back, &b);
    weights_of(&forth, &w);
    if (b.used > f.used) f = b;
    return w.used > f.used ? w.used : f.used;
}
