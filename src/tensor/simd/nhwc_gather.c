/* nhwc_gather: y, and dx, as sums over kernel taps and channels.
 *
 * Output pixels that have the same valid taps form a class: 9 of them for a 3 x 3 kernel with
 * padding 1 (the inside, four edges, four corners), s x s times as many for dx of a convolution
 * with stride s. Pixels of one class, whatever row and image they are in, share a list of runs:
 * stretches of `in`, relative to the pixel, that are contiguous and meet contiguous rows of the
 * packed weights. A tile is TILE_M pixels of a class.
 *
 * Loops, outside in: block of pixels (its input stays in L2), panel of output channels, block of
 * the sum (its weights stay in L1), class, tile. The terms of an output are added in the order of
 * the packed rows, whatever the batch or the tile it is in. */
#include "tensor/simd/nhwc.h"

enum {
    SUM_BLOCK = VW == 16 ? 128 : 384, /* rows of a panel that stay in L1 */
    BLOCK_BYTES = 384 * 1024,         /* input of a block of pixels      */
    BLOCK_PIXELS = 2048,              /* pixels of a block at most ...   */
    BLOCK_LEAST = 192,                /* ... and at least, if their input is no more than: */
    BLOCK_MOST = VW == 16 ? 1280 * 1024 : BLOCK_BYTES,
};

typedef struct pixel {
    const float *in; /* where its first valid tap reads */
    float *out;
} pixel;

typedef struct run {
    ptrdiff_t in; /* offset from pixel.in */
    int row, len; /* of the packed weights */
} run;

/* One axis of the output: positions sorted by class, ascending in each. */
typedef struct axis {
    int classes;
    int *tap, *taps;       /* per class: first valid tap, and how many      */
    int *start;            /* per class, and one more: where in pos         */
    int *pos, *src;        /* position, and where its first valid tap reads */
    int tap_step, in_step; /* from one valid tap to the next                */
} axis;

typedef struct class
{
    int first, count; /* pixels in the block's table               */
    int tap_y, taps_y, tap_x, taps_x;
    int terms, done; /* of the sum: in all, and so far in this panel */
} class;

typedef struct plan {
    axis y, x;
    class *classes;
    pixel *pixels;
    int class_count;
    size_t tile_count;    /* about */
    ahead input, weights; /* of the next block of pixels, and of the next of the sum */
    int images, rows;     /* of a block: several whole images, or rows of one */
} plan;

/* ---- tiles ---- */
enum { FROM_ZERO, FROM_BIAS, FROM_OUT };

typedef struct job {
    const run *runs;
    int run_count;
    const float *panel, *bias;
    ptrdiff_t out; /* offset from pixel.out */
    int from;
    bool relu;
    int last; /* lanes of the last vector that exist in `out` and `bias` */
} job;

static ALWAYS_INLINE void tile(int m, int nv, const pixel *p, const job *t)
{
    vf acc[TILE_M][TILE_NV];
    const float *in[TILE_M];
    ptrdiff_t at = t->out;

    EACH(i, m) in[i] = p[i].in;
    EACH(i, m) EACH(j, nv) if (j * VW % 16 == 0) __builtin_prefetch(p[i].out + at + j * VW, 1, 3);
    EACH(i, m) EACH(j, nv) acc[i][j] = vzero();
    if (t->from == FROM_OUT) {
        EACH(i, m) EACH(j, nv) acc[i][j] = vload_n(p[i].out + at + j * VW, LANES(j, nv, t->last));
    } else if (t->from == FROM_BIAS) {
        EACH(j, nv) acc[0][j] = vload_n(t->bias + j * VW, LANES(j, nv, t->last));
        EACH(i, m) EACH(j, nv) acc[i][j] = acc[0][j];
    }

    for (const run *r = t->runs, *end = r + t->run_count; r < end; r++) {
        const float *w = t->panel + (ptrdiff_t)r->row * (nv * VW);
        ptrdiff_t k = r->in, k_end = k + r->len;
        UNROLL(4)
        for (; k < k_end; k++, w += nv * VW) {
            vf wv[TILE_NV], x;
            EACH(j, nv) wv[j] = vload(w + j * VW);
            EACH(i, m)
            {
                x = vset1(in[i][k]);
                EACH(j, nv) acc[i][j] += x * wv[j];
            }
        }
    }

    if (t->relu) EACH(i, m) EACH(j, nv) acc[i][j] = vrelu(acc[i][j]);
    EACH(i, m) EACH(j, nv) vstore_n(p[i].out + at + j * VW, acc[i][j], LANES(j, nv, t->last));
}

/* `count` tiles, one behind the other. */
typedef void tile_fn(const pixel *p, int count, const job *t, ahead *input, ahead *weights);
#define TILE(m, nv)                                                                                \
    static void tile_##m##x##nv(const pixel *p, int count, const job *t, ahead *input,             \
                                ahead *weights)                                                    \
    {                                                                                              \
        for (; count > 0; count--, p += m) {                                                       \
            ahead_fetch(input);                                                                    \
            ahead_fetch(weights);                                                                  \
            tile(m, nv, p, t);                                                                     \
        }                                                                                          \
    }
TILES
static tile_fn *const tiles[][TILE_M] = TILE_TABLE;

/* ---- the plan ---- */
static int gcd(int a, int b)
{
    while (b) {
        int r = a % b;
        a = b, b = r;
    }
    return a;
}

/* Where tap k of position p reads, or -1. Turned windows have their taps in reverse, so that the
 * next tap reads further on here too. */
static int source(bool turned, int p, int k, int taps, int stride, int pad, int dilation, int len)
{
    int at;

    if (!turned) {
        at = p * stride - pad + k * dilation;
    } else {
        at = p + pad - (taps - 1 - k) * dilation;
        if (at % stride) return -1;
        at /= stride;
    }
    return at >= 0 && at < len ? at : -1;
}

static void axis_cut(axis *a, cutter *c, int len)
{
    a->tap = cut(c, (size_t)len * sizeof(int));
    a->taps = cut(c, (size_t)len * sizeof(int));
    a->start = cut(c, ((size_t)len + 1) * sizeof(int));
    a->pos = cut(c, (size_t)len * sizeof(int));
    a->src = cut(c, (size_t)len * sizeof(int));
}

/* The valid taps of a position are evenly spaced, so first and number tell a class. */
static void axis_plan(axis *a, bool turned, int len, int in_len, int taps, int stride, int pad,
                      int dilation)
{
    int done = 0;

    a->tap_step = turned ? stride / gcd(stride, dilation) : 1;
    a->in_step = turned ? dilation * a->tap_step / stride : dilation;
    a->classes = 0;
    for (int p = 0; p < len; p++) {
        int first = 0, count = 0, c = 0;
        for (int k = 0; k < taps; k++)
            if (source(turned, p, k, taps, stride, pad, dilation, in_len) >= 0 && !count++)
                first = k;
        while (c < a->classes && (a->tap[c] != first || a->taps[c] != count)) c++;
        if (c == a->classes) {
            a->tap[c] = first, a->taps[c] = count;
            a->classes++;
        }
        a->src[p] = c; /* for now */
    }
    for (int c = 0; c < a->classes; c++) {
        a->start[c] = done;
        for (int p = 0; p < len; p++)
            if (a->src[p] == c) a->pos[done++] = p;
    }
    a->start[a->classes] = done;
    for (int c = 0; c < a->classes; c++)
        for (int i = a->start[c]; i < a->start[c + 1]; i++)
            a->src[i] = a->taps[c] ? source(turned, a->pos[i], a->tap[c], taps, stride, pad,
                                            dilation, in_len)
                                   : 0;
}

/* How many images, or rows of one, make a block: what depends on the shape alone. */
static void block_plan(const gather *g, plan *p)
{
    double in = (double)g->ih * g->iw * g->ic * sizeof(float), pixels = (double)g->oh * g->ow;
    double fit = BLOCK_BYTES / in, fit_pixels = BLOCK_PIXELS / pixels;
    double least = fmin(BLOCK_LEAST / pixels, BLOCK_MOST / in);

    if (fit < least) fit = least; /* each block reads all weights, which may not be in L2 */
    if (!g->turned) {             /* strides may step over input */
        if (g->kh < g->sh) fit *= g->sh / (double)g->kh;
        if (g->kw < g->sw) fit *= g->sw / (double)g->kw;
    }
    if (fit_pixels < fit) fit = fit_pixels;
    p->images = fit < 1 ? 1 : fit < g->n ? (int)fit : max_int(g->n, 1);
    p->rows = fit >= 1 ? g->oh : max_int(1, (int)(fit * g->oh));
}

static void plan_cut(const gather *g, plan *p, cutter *c)
{
    size_t area;

    block_plan(g, p);
    area = (size_t)p->rows * (size_t)g->ow;
    axis_cut(&p->y, c, g->oh);
    axis_cut(&p->x, c, g->ow);
    p->classes = cut(c, area * sizeof(class));
    p->pixels = cut(c, area * (size_t)p->images * sizeof(pixel));
}

/* Lists the pixels of `images` images from n0 and rows y0 up to y1, by class. */
static void block_list(const gather *g, plan *p, int n0, int images, int y0, int y1)
{
    const axis *ay = &p->y, *ax = &p->x;
    int64_t in_image = (int64_t)g->ih * g->iw * g->ic, out_image = (int64_t)g->oh * g->ow * g->oc;
    pixel *q = p->pixels;
    class *c = p->classes;

    for (int cy = 0; cy < ay->classes; cy++) {
        int i0 = ay->start[cy], i1 = ay->start[cy + 1];
        while (i0 < i1 && ay->pos[i0] < y0) i0++;
        while (i0 < i1 && ay->pos[i1 - 1] >= y1) i1--;
        for (int cx = 0; cx < ax->classes && i0 < i1; cx++, c++) {
            int j0 = ax->start[cx], j1 = ax->start[cx + 1];
            *c = (class){.first = (int)(q - p->pixels),
                         .count = images * (i1 - i0) * (j1 - j0),
                         .tap_y = ay->tap[cy],
                         .taps_y = ay->taps[cy],
                         .tap_x = ax->tap[cx],
                         .taps_x = ax->taps[cx]};
            c->terms = c->taps_y * c->taps_x * (g->ic / g->groups);
            for (int n = n0; n < n0 + images; n++)
                for (int i = i0; i < i1; i++) {
                    const float *in = g->in + n * in_image + (int64_t)ay->src[i] * g->iw * g->ic;
                    float *out = g->out + n * out_image + (int64_t)ay->pos[i] * g->ow * g->oc;
                    for (int j = j0; j < j1; j++, q++)
                        *q = (pixel){in + (int64_t)ax->src[j] * g->ic,
                                     out + (int64_t)ax->pos[j] * g->oc};
                }
        }
    }
    p->class_count = (int)(c - p->classes);
    p->tile_count = (size_t)ceil_div((int)(q - p->pixels), TILE_M);
}

/* The runs of a class within rows k0 up to k1 of the packed weights; `first` is the group's first
 * channel. There are at most k1 - k0. */
static int runs_list(const gather *g, const plan *p, const class *c, int first, int k0, int k1,
                     run *r)
{
    int per = g->ic / g->groups, count = 0;
    bool joined = g->groups == 1 && p->x.tap_step == 1 && p->x.in_step == 1;
    int len = joined ? c->taps_x * per : per, across = joined ? 1 : c->taps_x;

    for (int i = 0; i < c->taps_y && c->taps_x; i++)
        for (int j = 0; j < across; j++) {
            int tap = (c->tap_y + i * p->y.tap_step) * g->kw + c->tap_x + j * p->x.tap_step;
            int row = tap * per, from = max_int(row, k0), to = min_int(row + len, k1);
            if (from >= to) continue;
            r[count].in = ((ptrdiff_t)i * p->y.in_step * g->iw + j * p->x.in_step) * g->ic + first +
                          (from - row);
            r[count].row = from;
            r[count++].len = to - from;
        }
    return count;
}

/* Tiles of the most pixels first, then those of one less. */
static void class_tiles(plan *p, const class *c, int nv, const job *t)
{
    int parts = ceil_div(c->count, TILE_M), m = ceil_div(c->count, parts);
    int larger = c->count - (m - 1) * parts;
    const pixel *q = p->pixels + c->first;

    tiles[nv - 1][m - 1](q, larger, t, &p->input, &p->weights);
    if (larger < parts)
        tiles[nv - 1][m - 2](q + larger * m, parts - larger, t, &p->input, &p->weights);
}

/* Pixels that no tap reaches. */
static void class_fill(const gather *g, const plan *p, const class *c)
{
    for (int i = c->first; i < c->first + c->count && !g->add; i++)
        for (int j = 0; j < g->oc; j += VW) {
            int take = vtake(j, g->oc);
            vf y = g->bias ? vload_n(g->bias + j, take) : vzero();
            vstore_n(p->pixels[i].out + j, g->relu ? vrelu(y) : y, take);
        }
}

/* One panel of output channels, `width` of them, of all pixels of the block. */
static void panel_sum(const gather *g, plan *p, int first, int width, job *t)
{
    run runs[SUM_BLOCK];
    int rows = g->kh * g->kw * (g->ic / g->groups), blocks = ceil_div(rows, SUM_BLOCK);
    int nv = ceil_div(width, VW);

    t->runs = runs;
    t->last = width - (nv - 1) * VW;
    for (int i = 0; i < p->class_count; i++) p->classes[i].done = 0;
    for (int b = 0; b < blocks; b++) {
        int k0 = part_start(rows, blocks, b), k1 = part_start(rows, blocks, b + 1);
        ahead_set(&p->weights, t->panel + (size_t)k1 * nv * VW, (size_t)(k1 - k0) * nv * VW,
                  p->tile_count);
        for (int i = 0; i < p->class_count; i++) {
            class *c = &p->classes[i];
            t->run_count = runs_list(g, p, c, first, k0, k1, runs);
            if (!t->run_count) continue;
            t->from = c->done || g->add ? FROM_OUT : g->bias ? FROM_BIAS : FROM_ZERO;
            for (int r = 0; r < t->run_count; r++) c->done += runs[r].len;
            t->relu = g->relu && c->done == c->terms;
            class_tiles(p, c, nv, t);
        }
    }
}

size_t TT_SIMD(nhwc_gather_scratch)(const gather *g)
{
    plan p;
    cutter c = {0};

    plan_cut(g, &p, &c);
    return c.used;
}

void TT_SIMD(nhwc_gather)(const gather *g, void *scratch)
{
    plan p;
    cutter c = {scratch, 0};
    int outs = g->oc / g->groups, per = g->ic / g->groups;
    size_t rows = (size_t)g->kh * g->kw * per, group_size = rows * ceil_div(outs, VW) * VW;

    plan_cut(g, &p, &c);
    axis_plan(&p.y, g->turned, g->oh, g->ih, g->kh, g->sh, g->ph, g->dh);
    axis_plan(&p.x, g->turned, g->ow, g->iw, g->kw, g->sw, g->pw, g->dw);
    int nblocks = ceil_div(g->n, p.images), yblocks = ceil_div(g->oh, p.rows);
    for (int b = 0; b < nblocks * yblocks; b++) {
        int n0 = part_start(g->n, nblocks, b / yblocks);
        int images = part_start(g->n, nblocks, b / yblocks + 1) - n0;
        int y0 = part_start(g->oh, yblocks, b % yblocks);
        int y1 = part_start(g->oh, yblocks, b % yblocks + 1);
        size_t image = (size_t)g->ih * g->iw * g->ic, in = image * images * (y1 - y0) / g->oh;
        block_list(g, &p, n0, images, y0, y1);
        for (int i = 0; i < p.class_count; i++)
            if (!p.classes[i].terms) class_fill(g, &p, &p.classes[i]);
        if (b + 1 == nblocks * yblocks || g->kh < g->sh || g->kw < g->sw) in = 0;
        ahead_set(&p.input, g->in + n0 * image + image * y0 / g->oh + in, in,
                  p.tile_count * g->groups * ceil_div(outs, PANEL));
        for (int i = 0; i < g->groups; i++)
            for (int o = 0; o < outs; o += PANEL) {
                int at = i * outs + o;
                job t = {.panel = g->packed + i * group_size + rows * o,
                         .bias = g->bias ? g->bias + at : NULL,
                         .out = at};
                panel_sum(g, &p, i * per, min_int(PANEL, outs - o), &t);
            }
    }
}
