/* nhwc_weight: dw, as sums over pixels.
 *
 * A tile is TILE_M output channels x TILE_NV vectors of input channels of one kernel tap. For a
 * block of output pixels, dy is packed so that a tile reads it in one stream: (tile, y, x, image,
 * TILE_M). The input the block reads is packed a panel of channels at a time: (row, phase, column,
 * image, panel), where the phase is the column modulo the stride, so that a kernel tap always walks
 * it in steps of one. A tap then takes whole stretches of rows of both, and leaves out those that
 * padding would meet.
 *
 * Sums are kept in the order (panel, o, tap, panel's channels) and put into (o, c, kh, kw) at the
 * end; with one tap both are the same and dw itself takes the sums. With one tap, no padding and
 * few input channels, dy is read where it is.
 *
 * With fewer input channels than a vector holds, the tile is turned: its rows are kernel taps and
 * input channels, spread out as one row for each pixel (padding as zeros), and its vectors are
 * output channels. */
#include "tensor/simd/nhwc.h"

enum {
    /* Pixels of a block: with one tap a panel of their input stays in L1, and all of their dy in
     * L2. Several taps share what was packed, and want long rows. */
    TAP_PIXELS = VW == 16 ? 160 : 256,
    TAPS_PIXELS = VW == 16 ? 512 : 256,
    /* With one tap, output channels whose dy is packed at a time: it is read once for each panel of
     * input channels, and must stay in L2. */
    TAP_OUTS = VW == 16 ? 1 << 30 : 384,
    SPREAD_BYTES = 64 * 1024, /* of rows of taps and channels, and of dy                   */
    FLAT_MOST = 128,          /* input channels up to which packing dy does not pay        */
    OVERRUN = 16,             /* floats that a copy in whole vectors may write too many    */
};

typedef struct plan {
    int per, outs, taps; /* channels in and out of a group                   */
    int images, rows;    /* of a block: several whole images, or rows of one */
    int in_rows;         /* most rows of input a block reads                 */
    int columns;         /* of a phase                                       */
    bool flat;           /* one tap, no padding: pixels stay in their order, dy as it is */
    bool spread;         /* tiles are turned, and these are their rows:      */
    int taps_wide, outs_wide;
    int parts;           /* of the output channels: dy is packed for one at a time       */
    int tiles;           /* of a part, or along taps and input channels      */
    float *x, *dy, *sum; /* sum is NULL if dw takes its place                */
    size_t x_size; /* floats of x for each input channel; with several parts x is kept whole */
    ahead next_x, next_dy;
} plan;

typedef struct block {
    int n0, images, y0, y1;
    int row0, row1; /* of the input */
} block;

/* ---- tiles ---- */
typedef struct walk {
    int rows, len;            /* stretches, and pixels in each          */
    ptrdiff_t a_row, b_row;   /* from one stretch to the next, in floats */
    ptrdiff_t a_step, b_step; /* from one pixel to the next            */
    ptrdiff_t sum_step;       /* from one row of the tile to the next   */
    bool load;                /* add to what is there                   */
    int last;                 /* lanes of the last vector that exist    */
} walk;

static ALWAYS_INLINE void tile(int m, int nv, const float *a, const float *b, const walk *w,
                               float *sum)
{
    vf acc[TILE_M][TILE_NV];
    ptrdiff_t a_step = w->a_step, b_step = w->b_step, step = w->sum_step;
    int len = w->len;

    /* The sums of the next tile: a tile cannot begin before it has its own. */
    EACH(i, m)
    EACH(j, nv) if (j * VW % 16 == 0) __builtin_prefetch(sum + (m + i) * step + j * VW, 1, 3);
    EACH(i, m) EACH(j, nv) acc[i][j] = vzero();
    if (w->load)
        EACH(i, m) EACH(j, nv) acc[i][j] = vload_n(sum + i * step + j * VW, LANES(j, nv, w->last));
    for (int r = 0; r < w->rows; r++) {
        const float *ar = a + r * w->a_row, *br = b + r * w->b_row;
        UNROLL(4)
        for (int k = 0; k < len; k++, ar += a_step, br += b_step) {
            vf bv[TILE_NV], y;
            EACH(j, nv) bv[j] = vload(br + j * VW);
            EACH(i, m)
            {
                y = vset1(ar[i]);
                EACH(j, nv) acc[i][j] += y * bv[j];
            }
        }
    }
    EACH(i, m) EACH(j, nv) vstore_n(sum + i * step + j * VW, acc[i][j], LANES(j, nv, w->last));
}

typedef void tile_fn(const float *a, const float *b, const walk *w, float *sum);
#define TILE(m, nv)                                                                                \
    static void tile_##m##x##nv(const float *a, const float *b, const walk *w, float *sum)         \
    {                                                                                              \
        tile(m, nv, a, b, w, sum);                                                                 \
    }
TILES
static tile_fn *const tiles[][TILE_M] = TILE_TABLE;

/* ---- the plan ---- */
static void plan_cut(const weight *d, plan *p, cutter *c)
{
    const tt_window *w = d->win;
    int area = w->oh * w->ow, fit = w->kh * w->kw > 1 ? TAPS_PIXELS : TAP_PIXELS;
    size_t pixels, sums;

    p->per = w->c / w->groups, p->outs = w->o / w->groups, p->taps = w->kh * w->kw;
    p->flat = p->taps == 1 && p->per <= FLAT_MOST && !w->ph && !w->pw &&
              (w->oh - 1) * w->sh < w->h && (w->ow - 1) * w->sw < w->w;
    p->spread = p->taps > 1 && p->per < VW;
    p->taps_wide = p->taps * p->per, p->outs_wide = ceil_div(p->outs, VW) * VW;
    p->parts = p->taps > 1 || p->flat ? 1 : ceil_div(p->outs, TAP_OUTS);
    p->tiles = ceil_div(p->spread ? p->taps_wide : ceil_div(p->outs, p->parts), TILE_M);
    if (p->spread) fit = SPREAD_BYTES / ((p->taps_wide + p->outs_wide) * (int)sizeof(float));
    p->images = min_int(max_int(fit / area, 1), max_int(d->n, 1));
    p->rows = fit >= area ? w->oh : max_int(fit / w->ow, 1);
    p->in_rows = min_int(w->h, (p->rows - 1) * w->sh + (w->kh - 1) * w->dh + 1);
    p->columns = ceil_div(w->w, w->sw);

    pixels = (size_t)p->images * p->rows * w->ow;
    if (p->spread) {
        p->x = cut(c, (pixels * p->taps_wide + OVERRUN) * sizeof(float));
        p->dy = cut(c, pixels * PANEL * sizeof(float));
        p->sum = cut(c, (size_t)p->taps_wide * p->outs_wide * sizeof(float));
    } else {
        p->x_size = (size_t)p->in_rows * w->sw * p->columns * p->images;
        p->x = cut(c, p->x_size * sizeof(float) *
                          (p->parts > 1 ? ceil_div(p->per, PANEL) * PANEL : PANEL));
        p->dy = cut(c, (pixels * TILE_M + OVERRUN) * p->tiles * sizeof(float));
        sums = p->taps > 1 ? (size_t)p->outs * p->taps * ceil_div(p->per, VW) * VW : 0;
        p->sum = sums ? cut(c, sums * sizeof(float)) : NULL;
    }
}

static int block_pixels(const weight *d, const block *b)
{
    return b->images * (b->y1 - b->y0) * d->win->ow;
}

/* ---- packing a block ---- */
/* Copies whole vectors where that reads nothing outside; what is written too much is written again.
 */
static ALWAYS_INLINE void copy_over(const float *from, int n, float *to, const float *end)
{
    int i = 0;

    for (; i < n && end - from >= i + VW; i += VW) vstore(to + i, vload(from + i));
    for (; i < n; i++) to[i] = from[i];
}

/* From the one tile's stream to the next one's. */
static size_t stream_size(const weight *d, const block *b)
{
    return (size_t)block_pixels(d, b) * TILE_M + OVERRUN;
}

/* A few pixels at a time, so that what is read and what is written both stay in L1. */
static void dy_pack(const weight *d, const plan *p, const block *b, int first, int outs)
{
    enum { PIXELS = 16 };
    const tt_window *w = d->win;
    size_t area = (size_t)w->oh * w->ow, stream = stream_size(d, b);
    int most = ceil_div(outs, p->tiles), larger = outs - (most - 1) * p->tiles;
    const float *from[PIXELS], *end = d->dy + d->n * area * w->o;
    float *to = p->dy;
    int count = 0, left = block_pixels(d, b);

    for (int y = b->y0; y < b->y1; y++)
        for (int x = 0; x < w->ow; x++)
            for (int n = b->n0; n < b->n0 + b->images; n++) {
                from[count++] = d->dy + (n * area + y * w->ow + x) * w->o + first;
                if (count < PIXELS && count < left) continue;
                for (int t = 0, o = 0; t < p->tiles; t++) {
                    int m = t < larger ? most : most - 1;
                    float *at = to + t * stream;
                    for (int i = 0; i < count; i++, at += TILE_M)
                        copy_over(from[i] + o, m, at, end);
                    o += m;
                }
                to += count * TILE_M, left -= count, count = 0;
            }
}

/* Whether any tap of the window reads positions that are `at` modulo the stride. */
static bool phase_used(int at, int taps, int stride, int pad, int dilation)
{
    for (int k = 0; k < taps; k++)
        if ((at + pad - k * dilation) % stride == 0) return true;
    return false;
}

/* `count` pixels, `step` apart, of `width` channels each. */
static void lanes_pack(const float *from, size_t step, int count, int width, float *to)
{
    int nv = ceil_div(width, VW), last = width - (nv - 1) * VW;

    if (width == PANEL) {
        for (int i = 0; i < count; i++, from += step, to += PANEL)
            EACH(j, TILE_NV) vstore(to + j * VW, vload(from + j * VW));
        return;
    }
    for (int i = 0; i < count; i++, from += step)
        for (int j = 0; j < nv; j++, to += VW)
            vstore(to, vload_n(from + j * VW, j < nv - 1 ? VW : last));
}

/* `width` channels from `first` on of the input the block reads. */
static void x_pack(const weight *d, const plan *p, const block *b, int first, int width,
                   float *panel)
{
    const tt_window *w = d->win;
    size_t image = (size_t)w->h * w->w * w->c, wide = (size_t)ceil_div(width, VW) * VW;
    size_t part = (size_t)p->columns * b->images * wide; /* of a row: a phase */

    for (int r = b->row0; r < b->row1; r++) {
        if (!phase_used(r, w->kh, w->sh, w->ph, w->dh)) continue;
        for (int phase = 0; phase < w->sw; phase++) {
            const float *from = d->x + b->n0 * image + ((size_t)r * w->w + phase) * w->c + first;
            float *to = panel + ((size_t)(r - b->row0) * w->sw + phase) * part;
            if (!phase_used(phase, w->kw, w->sw, w->pw, w->dw)) continue;
            if (b->images == 1) {
                lanes_pack(from, (size_t)w->sw * w->c, ceil_div(w->w - phase, w->sw), width, to);
                continue;
            }
            for (int x = phase; x < w->w; x += w->sw, from += w->sw * w->c, to += b->images * wide)
                lanes_pack(from, image, b->images, width, to);
        }
    }
}

static void x_pack_flat(const weight *d, const block *b, int first, int width, float *to)
{
    const tt_window *w = d->win;
    bool whole = w->oh == w->h && w->ow == w->w; /* no stride either */
    int rows = whole ? 1 : b->y1 - b->y0, count = whole ? block_pixels(d, b) : w->ow;
    size_t wide = (size_t)ceil_div(width, VW) * VW;

    for (int n = b->n0; n < b->n0 + (whole ? 1 : b->images); n++)
        for (int y = b->y0; y < b->y0 + rows; y++, to += count * wide)
            lanes_pack(d->x + ((n * (size_t)w->h + y * w->sh) * w->w) * w->c + first,
                       (size_t)w->sw * w->c, count, width, to);
}

/* One kernel row of one pixel: taps from column ix on of the row at `row`, zeros outside it. */
static void spread_edge(const weight *d, const plan *p, const float *row, int ix, bool inside,
                        float *to)
{
    const tt_window *w = d->win;

    for (int kx = 0; kx < w->kw; kx++, ix += w->dw)
        for (int c = 0; c < p->per; c++)
            *to++ = inside && ix >= 0 && ix < w->w ? row[(ptrdiff_t)ix * w->c + c] : 0;
}

/* For each pixel of the block a row of (kh, kw, c), zeros where padding is. */
static void x_spread(const weight *d, const plan *p, const block *b, int first)
{
    const tt_window *w = d->win;
    const float *end = d->x + (size_t)d->n * w->h * w->w * w->c;
    bool joined = w->groups == 1 && w->dw == 1;
    int len = w->kw * p->per, rows = b->y1 - b->y0;
    float *to = p->x;

    for (int i = 0; i < b->images * rows; i++) {
        int n = b->n0 + i / rows, top = (b->y0 + i % rows) * w->sh - w->ph;
        const float *image = d->x + (size_t)n * w->h * w->w * w->c + first;
        for (int x = 0, ix = -w->pw; x < w->ow; x++, ix += w->sw) {
            bool whole = joined && ix >= 0 && ix + w->kw <= w->w;
            for (int ky = 0, iy = top; ky < w->kh; ky++, iy += w->dh, to += len) {
                bool inside = iy >= 0 && iy < w->h;
                const float *row = inside ? image + (size_t)iy * w->w * w->c : image;
                if (whole && inside)
                    copy_over(row + (ptrdiff_t)ix * w->c, len, to, end);
                else
                    spread_edge(d, p, row, ix, inside, to);
            }
        }
    }
}

/* ---- sums ---- */
/* The outputs from `from` up to `to` whose tap k, at offset off = k * dilation - pad, reads inside.
 */
static void valid(int off, int stride, int len, int *from, int *to)
{
    if (off < 0) *from = max_int(*from, ceil_div(-off, stride));
    *to = off >= len ? *from : min_int(*to, (len - 1 - off) / stride + 1);
    if (*to < *from) *to = *from;
}

/* All tiles of one panel and tap: `rows` rows, in tiles of the most rows and then of one less. Tile
 * i from row r on reads `a` at i * tile_step + r * row_step. */
static void tiles_sum(plan *p, int rows, int nv, const float *a, size_t tile_step, size_t row_step,
                      const float *b, const walk *k, float *sum)
{
    int m = ceil_div(rows, p->tiles), larger = rows - (m - 1) * p->tiles;

    for (int i = 0; i < p->tiles; i++) {
        if (i == larger) m--;
        ahead_fetch(&p->next_x);
        ahead_fetch(&p->next_dy);
        tiles[nv - 1][m - 1](a, b, k, sum);
        a += tile_step + m * row_step, sum += m * k->sum_step;
    }
}

/* All taps of one panel of input, which is at `panel` and whose channels start at c, with as many
 * output channels as dy is packed for; dw is where the first of them begins. */
static void panel_sum(const weight *d, plan *p, const block *b, int c, const float *panel, int outs,
                      bool load, float *dw)
{
    const tt_window *w = d->win;
    int width = min_int(PANEL, p->per - c), nv = ceil_div(width, VW), wide = nv * VW;
    size_t stream = stream_size(d, b), row = (size_t)w->sw * p->columns * b->images * wide;
    float *sum = p->sum ? p->sum + (size_t)p->outs * p->taps * c : dw + c;
    walk k = {.a_row = (ptrdiff_t)w->ow * b->images * TILE_M,
              .b_row = (ptrdiff_t)row * w->sh,
              .a_step = TILE_M,
              .b_step = wide,
              .sum_step = p->sum ? p->taps * wide : p->per,
              .load = load,
              .last = p->sum ? VW : width - (nv - 1) * VW};

    for (int tap = 0; tap < p->taps; tap++, sum += wide) {
        int off_y = tap / w->kw * w->dh - w->ph, off_x = tap % w->kw * w->dw - w->pw;
        int y0 = b->y0, y1 = b->y1, x0 = 0, x1 = w->ow, ix;
        const float *dy = p->dy, *x = panel;
        walk t = k;
        valid(off_y, w->sh, w->h, &y0, &y1);
        valid(off_x, w->sw, w->w, &x0, &x1);
        ix = x0 * w->sw + off_x;
        t.rows = y1 - y0, t.len = (x1 - x0) * b->images;
        if (t.rows && t.len) {
            dy += ((y0 - b->y0) * (ptrdiff_t)w->ow + x0) * b->images * TILE_M;
            x += (y0 * w->sh + off_y - b->row0) * row;
            x += ((ptrdiff_t)(ix % w->sw) * p->columns + ix / w->sw) * b->images * wide;
            if (t.a_row == (ptrdiff_t)t.len * TILE_M && t.b_row == t.len * t.b_step)
                t.len *= t.rows, t.rows = 1;
        }
        tiles_sum(p, outs, nv, dy, stream, 0, x, &t, sum);
    }
}

static void flat_sum(const weight *d, plan *p, const block *b, int group, int c, bool load,
                     float *dw)
{
    const tt_window *w = d->win;
    const float *dy = d->dy + ((size_t)b->n0 * w->oh + b->y0) * w->ow * w->o + group * p->outs;
    int width = min_int(PANEL, p->per - c), nv = ceil_div(width, VW);
    walk k = {.rows = 1,
              .len = block_pixels(d, b),
              .a_step = w->o,
              .b_step = nv * VW,
              .sum_step = p->per,
              .load = load,
              .last = width - (nv - 1) * VW};

    tiles_sum(p, p->outs, nv, dy, 0, 1, p->x, &k, dw + c);
}

static void spread_sum(const weight *d, plan *p, const block *b, int group, bool load)
{
    const tt_window *w = d->win;
    const float *dy = d->dy + ((size_t)b->n0 * w->oh + b->y0) * w->ow * w->o + group * p->outs;

    for (int o = 0; o < p->outs; o += PANEL) {
        int width = min_int(PANEL, p->outs - o), nv = ceil_div(width, VW);
        const float *from = dy + o;
        walk k = {.rows = 1,
                  .len = block_pixels(d, b),
                  .a_step = p->taps_wide,
                  .b_step = w->o,
                  .sum_step = p->outs_wide,
                  .load = load,
                  .last = VW};
        if (width % VW) { /* whole vectors would read on into what follows dy */
            lanes_pack(from, w->o, k.len, width, p->dy);
            from = p->dy, k.b_step = nv * VW;
        }
        tiles_sum(p, p->taps_wide, nv, p->x, 0, 1, from, &k, p->sum + o);
    }
}

/* Blocks follow each other in memory, and are about the same size. */
static void ahead_plan(const weight *d, plan *p, const block *b, bool last)
{
    const tt_window *w = d->win;
    size_t in = (size_t)w->h * w->w * w->c, out = (size_t)w->oh * w->ow * w->o;
    size_t panels = p->spread ? ceil_div(p->outs, PANEL) : p->taps * ceil_div(p->per, PANEL);
    size_t tile_count = (size_t)p->tiles * p->parts * panels;
    size_t x_size = in * b->images * (b->y1 - b->y0) / w->oh;
    size_t dy_size = out * b->images * (b->y1 - b->y0) / w->oh;
    bool skips = w->kh < w->sh || w->kw < w->sw; /* then most of x is never read */

    ahead_set(&p->next_x, d->x + b->n0 * in + in * b->y0 / w->oh + x_size,
              last || skips ? 0 : x_size, tile_count);
    ahead_set(&p->next_dy, d->dy + b->n0 * out + out * b->y0 / w->oh + dy_size, last ? 0 : dy_size,
              tile_count);
}

static void block_sum(const weight *d, plan *p, const block *b, int group, bool load, float *dw)
{
    if (p->spread) {
        x_spread(d, p, b, group * p->per);
        spread_sum(d, p, b, group, load);
        return;
    }
    for (int c = 0; p->flat && c < p->per; c += PANEL) {
        x_pack_flat(d, b, group * p->per + c, min_int(PANEL, p->per - c), p->x);
        flat_sum(d, p, b, group, c, load, dw);
    }
    if (p->flat) return;
    for (int i = 0; i < p->parts; i++) {
        int o = part_start(p->outs, p->parts, i), outs = part_start(p->outs, p->parts, i + 1) - o;
        dy_pack(d, p, b, group * p->outs + o, outs);
        for (int c = 0; c < p->per; c += PANEL) {
            float *x = p->x + (p->parts > 1 ? p->x_size * c : 0);
            if (i == 0) x_pack(d, p, b, group * p->per + c, min_int(PANEL, p->per - c), x);
            panel_sum(d, p, b, c, x, outs, load, dw + (size_t)o * p->per);
        }
    }
}

/* Sums into (o, c, kh, kw): for each output channel (taps, channels), rows `tap_step` and elements
 * `step` apart, into (channels, taps). */
static void turn_taps(const plan *p, const float *s, size_t tap_step, size_t step, int channels,
                      float *dw, bool add)
{
    for (int c = 0; c < channels; c++, s += step)
        for (int t = 0; t < p->taps; t++, dw++) *dw = add ? *dw + s[t * tap_step] : s[t * tap_step];
}

static void sums_turn(const plan *p, float *dw, bool add)
{
    size_t step = (size_t)p->taps * p->per;

    if (p->spread) {
        for (int o = 0; o < p->outs; o++, dw += step)
            turn_taps(p, p->sum + o, (size_t)p->per * p->outs_wide, p->outs_wide, p->per, dw, add);
        return;
    }
    for (int c = 0; c < p->per; c += PANEL) {
        int width = min_int(PANEL, p->per - c);
        size_t wide = (size_t)ceil_div(width, VW) * VW;
        const float *sum = p->sum + (size_t)p->outs * p->taps * c;
        for (int o = 0; o < p->outs; o++, sum += p->taps * wide)
            turn_taps(p, sum, wide, 1, width, dw + o * step + (size_t)c * p->taps, add);
    }
}

size_t TT_SIMD(nhwc_weight_scratch)(const weight *d)
{
    plan p;
    cutter c = {0};

    plan_cut(d, &p, &c);
    return c.used;
}

void TT_SIMD(nhwc_weight)(const weight *d, void *scratch)
{
    const tt_window *w = d->win;
    plan p;
    cutter c = {scratch, 0};
    float *dw = d->dw;

    plan_cut(d, &p, &c);
    int nblocks = max_int(ceil_div(d->n, p.images), 1), yblocks = ceil_div(w->oh, p.rows);
    for (int g = 0; g < w->groups; g++, dw += (size_t)p.outs * p.per * p.taps) {
        for (int i = 0; i < nblocks * yblocks; i++) {
            block b = {.n0 = part_start(d->n, nblocks, i / yblocks),
                       .y0 = part_start(w->oh, yblocks, i % yblocks),
                       .y1 = part_start(w->oh, yblocks, i % yblocks + 1)};
            b.images = part_start(d->n, nblocks, i / yblocks + 1) - b.n0;
            b.row0 = max_int(0, b.y0 * w->sh - w->ph);
            b.row1 = min_int(w->h, (b.y1 - 1) * w->sh - w->ph + (w->kh - 1) * w->dh + 1);
            ahead_plan(d, &p, &b, i + 1 == nblocks * yblocks);
            block_sum(d, &p, &b, g, i > 0 || (d->add && !p.sum), dw);
        }
        if (p.sum) sums_turn(&p, dw, d->add);
    }
}
