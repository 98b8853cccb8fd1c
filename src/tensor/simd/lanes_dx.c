/* lanes_dx: the gradient of the input.
 *
 * Behind pooling only one output of each window has a gradient, but which one differs from lane to
 * lane. So the sums run over pooled outputs: for each, the (up to 4) weights that the places of the
 * window would use form a patch, and a shuffle lets every lane take the weight of its own place.
 * With a 2 x 2 window and a 5 x 5 kernel a pixel costs 9 multiplications in place of 25. Without
 * pooling, and where there is no such shuffle or the window is larger, the grid is that of the
 * outputs and a patch is one weight. */
#include "tensor/simd/lanes.h"

/* ---- Which taps there are ---- */

/* The weight (of k, `dil` apart) that place r of a window (`stride` apart) uses at distance d; -1:
 * none. */
static int weight_at(int d, int r, int stride, int dil, int k)
{
    int t = d - r * stride;

    return t >= 0 && t % dil == 0 && t / dil < k ? t / dil : -1;
}

static bool is_tap(int d, int places, int stride, int dil, int k)
{
    for (int r = 0; r < places; r++)
        if (weight_at(d, r, stride, dil, k) >= 0) return true;
    return false;
}
static bool is_row(const tt_conv *c, const dx_plan *p, int d)
{
    return is_tap(d, p->rows, c->win.sh, c->win.dh, c->win.kh);
}
static bool is_col(const tt_conv *c, const dx_plan *p, int d)
{
    return is_tap(d, p->cols, c->win.sw, c->win.dw, c->win.kw);
}

dx_plan TT_SIMD(lanes_dx_plan)(const tt_conv *c)
{
    const tt_window *w = &c->win;
    dx_plan p = {.rows = 1,
                 .cols = 1,
                 .sy = w->sh,
                 .sx = w->sw,
                 .grid_h = w->oh,
                 .grid_w = w->ow,
                 .most = ROWS_MOST};
    int last, rows = 0, cols = 0;

    if (HAVE_PATCH && c->pool && c->pkh * c->pkw <= 4) {
        p.patch = true;
        p.rows = c->pkh, p.cols = c->pkw;
        p.sy = w->sh * c->psh, p.sx = w->sw * c->psw;
        p.grid_h = c->poh, p.grid_w = c->pow_;
        p.most = PATCH_MOST;
    }
    p.reach_y = (w->kh - 1) * w->dh + (p.rows - 1) * w->sh;
    p.reach_x = (w->kw - 1) * w->dw + (p.cols - 1) * w->sw;
    p.top = p.reach_y / p.sy, p.left = p.reach_x / p.sx;
    last = (w->ph + w->h - 1) / p.sy;
    p.h = p.top + (last + 1 > p.grid_h ? last + 1 : p.grid_h);
    last = (w->pw + w->w - 1) / p.sx;
    p.w = p.left + (last + 1 > p.grid_w ? last + 1 : p.grid_w);
    for (int d = 0; d <= p.reach_y; d++) rows += is_row(c, &p, d);
    for (int d = 0; d <= p.reach_x; d++) cols += is_col(c, &p, d);
    p.taps = w->o * rows * cols;
    return p;
}

/* ---- Packing: [class][tile of input channels][tap][channel of the tile][1 or 4] ---- */
size_t TT_SIMD(lanes_dx_packed)(const tt_conv *c)
{
    dx_plan p = TT_SIMD(lanes_dx_plan)(c);

    return (size_t)p.taps * c->win.c * (p.patch ? 4 : 1);
}

/* The taps of one row and column, of all output channels, for input channels [first, last). */
static float *pack_tap(const tt_conv *c, const dx_plan *p, const float *w, int y, int x, int first,
                       int last, float *to)
{
    const tt_window *win = &c->win;
    const ptrdiff_t kernel = (ptrdiff_t)win->kh * win->kw;
    const int places = p->rows * p->cols, size = p->patch ? 4 : 1;
    int at[4];

    for (int i = 0; i < size; i++) {
        int ky = i < places ? weight_at(y, i / p->cols, win->sh, win->dh, win->kh) : -1;
        int kx = i < places ? weight_at(x, i % p->cols, win->sw, win->dw, win->kw) : -1;

        at[i] = ky < 0 || kx < 0 ? -1 : ky * win->kw + kx;
    }
    for (int o = 0; o < win->o; o++)
        for (int ch = first; ch < last; ch++) {
            const float *from = w + ((ptrdiff_t)o * win->c + ch) * kernel;

            for (int i = 0; i < size; i++) *to++ = at[i] < 0 ? 0 : from[at[i]];
        }
    return to;
}

void TT_SIMD(lanes_dx_pack)(const tt_conv *c, const float *w, float *packed)
{
    const dx_plan p = TT_SIMD(lanes_dx_plan)(c);
    const int in = c->win.c, tiles = ceil_div(in, p.most);

    for (int cy = 0; cy < p.sy; cy++)
        for (int cx = 0; cx < p.sx; cx++)
            for (int t = 0; t < tiles; t++)
                for (int y = cy; y <= p.reach_y; y += p.sy)
                    for (int x = cx; x <= p.reach_x; x += p.sx) {
                        if (!is_row(c, &p, y) || !is_col(c, &p, x)) continue;
                        packed = pack_tap(c, &p, w, y, x, part_start(in, tiles, t),
                                          part_start(in, tiles, t + 1), packed);
                    }
}

/* ---- Patches ---- */

/* Lane i: w[pick[i] & 3]. */
LANES_SHUFFLE vf choose(const float *w, vi pick)
{
#if defined(TT_512)
    return (vf)_mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(w)), (__m512i)pick);
#elif defined(TT_256)
    return (vf)_mm256_permutevar_ps(_mm256_broadcast_ps((const __m128 *)w), (__m256i)pick);
#else
    vf r;

    for (int i = 0; i < VW; i++) r[i] = w[pick[i] & 3];
    return r;
#endif
}

static ALWAYS_INLINE void patch_tile(const int m, const int n, const row_job *r, int place)
{
    vf sum[PATCH_MOST][2];
    const tap_range t = row_taps(r, place, n);
    const float *x = r->x + place * 2 * VW;
    float *y = r->y + place * r->y_step;

#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int j = 0; j < n; j++)
            sum[i][j] = r->add ? vload(y + i * r->y_stride + j * r->y_step) : vzero();
    }
    for (int k = 0; k < r->rows; k++) {
        const ptrdiff_t skip = ((ptrdiff_t)k * r->cols + t.first) * r->depth;
        const int32_t *off = r->off + skip, *end = off + (t.last - t.first) * r->depth;
        const float *w = r->w + skip * m * 4;

        for (; off < end; off++, w += m * 4) {
            const float *p = x + *off;
            vf g[2];
            vi pick[2];

#pragma GCC unroll ALL
            for (int j = 0; j < n; j++) {
                g[j] = vload(p + j * 2 * VW);
                pick[j] = (vi)vload(p + j * 2 * VW + VW);
            }
#pragma GCC unroll ALL
            for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
                for (int j = 0; j < n; j++) sum[i][j] += choose(w + i * 4, pick[j]) * g[j];
            }
        }
    }
#pragma GCC unroll ALL
    for (int i = 0; i < m; i++) {
#pragma GCC unroll ALL
        for (int j = 0; j < n; j++) vstore(y + i * r->y_stride + j * r->y_step, sum[i][j]);
    }
}

static ALWAYS_INLINE void patch_row(const int m, const row_job *r)
{
    int i = 0;

    for (; i + 2 <= r->count; i += 2) patch_tile(m, 2, r, i);
    if (i < r->count) patch_tile(m, 1, r, i);
}

static void patch_row_of(int m, const row_job *r)
{
    switch (m) {
#define ROW(m_)                                                                                    \
    case m_:                                                                                       \
        if (HAVE_PATCH && m_ <= PATCH_MOST) patch_row(m_, r);                                      \
        break;
        ROW(1) ROW(2) ROW(3) ROW(4) ROW(5) ROW(6) ROW(7) ROW(8) ROW(9) ROW(10)
#undef ROW
    }
}

/* ---- One slice ---- */

/* One row of gradients, each to the place of its window that won; zeros to the others. */
static ALWAYS_INLINE void spread_row(const tt_conv *c, const int kh, const int kw, const float *dy,
                                     const uint8_t *pick, int w, float *to)
{
    for (int j = 0; j < c->pow_; j++, dy += VW, pick += VW, to += c->psw * VW) {
        const vf g = vload(dy);
        const vi won = pick_load(pick);

        for (int y = 0; y < kh; y++)
            for (int x = 0; x < kw; x++)
                vstore(to + ((ptrdiff_t)y * w + x) * VW, (vf)((vi)g & (won == y * kw + x)));
    }
}

void TT_SIMD(lanes_spread)(const tt_conv *c, int channels, int first, int rows, const float *dy,
                           const uint8_t *pick, ptrdiff_t plane, int w, float *to)
{
    const int h = c->pool ? c->poh : c->win.oh, cols = c->pool ? c->pow_ : c->win.ow;

    for (int o = 0; o < channels; o++)
        for (int i = 0; i < rows; i++) {
            const ptrdiff_t at = ((ptrdiff_t)o * h + first + i) * cols * VW;
            float *p = to + (o * plane + (ptrdiff_t)i * (c->pool ? c->psh : 1) * w) * VW;

            if (!c->pool)
                memcpy(p, dy + at, (size_t)cols * VB);
            else if (c->pkh == 2 && c->pkw == 2)
                spread_row(c, 2, 2, dy + at, pick + at, w, p);
            else
                spread_row(c, c->pkh, c->pkw, dy + at, pick + at, w, p);
        }
}

static void fill_patches(const tt_conv *c, const dx_plan *p, const float *dy, const uint8_t *pick,
                         float *grid)
{
    for (int o = 0; o < c->win.o; o++)
        for (int i = 0; i < p->grid_h; i++) {
            float *to = grid + (((ptrdiff_t)o * p->h + p->top + i) * p->w + p->left) * 2 * VW;

            for (int j = 0; j < p->grid_w; j++, dy += VW, pick += VW, to += 2 * VW) {
                vstore(to, vload(dy));
                vstore(to + VW, (vf)pick_load(pick));
            }
        }
}

typedef struct dx_scratch {
    int32_t *off;             /* of one class's taps, [row][column][output channel]  */
    int32_t *row_at, *col_at; /* grid points from its rows and columns to the pixel's */
    float *grid;
} dx_scratch;
static size_t dx_cut(const tt_conv *c, const dx_plan *p, void *base, dx_scratch *s)
{
    cutter k = {base, 0};

    s->off = cut(&k, (size_t)p->taps * sizeof(int32_t));
    s->row_at = cut(&k, ((size_t)p->top + 1) * sizeof(int32_t));
    s->col_at = cut(&k, ((size_t)p->left + 1) * sizeof(int32_t));
    s->grid = cut_vectors(&k, (int64_t)c->win.o * p->h * p->w * (p->patch ? 2 : 1));
    return k.used;
}

size_t TT_SIMD(lanes_dx_scratch)(const tt_conv *c, const dx_plan *p)
{
    dx_scratch s;

    return dx_cut(c, p, NULL, &s);
}

/* The pixels cy + sy * y - ph, cx + sx * x - pw. Returns how many taps they have. */
static int dx_class(const tt_conv *c, const dx_plan *p, const dx_scratch *s, int cy, int cx,
                    const float *packed, const float *bias, float *dx, bool add)
{
    const tt_window *w = &c->win;
    const int tiles = ceil_div(w->c, p->most), size = p->patch ? 4 : 1,
              point = p->patch ? 2 * VW : VW;
    /* Where on the grid its first pixel is. */
    const int y0 = w->ph > cy ? ceil_div(w->ph - cy, p->sy) : 0;
    const int x0 = w->pw > cx ? ceil_div(w->pw - cx, p->sx) : 0;
    const int right = w->pw + w->w - cx - x0 * p->sx;
    int32_t *off = s->off;
    int rows = 0, cols = 0, taps;
    row_job r = {.x_step = point,
                 .count = right > 0 ? ceil_div(right, p->sx) : 0,
                 .depth = w->o,
                 .col_at = s->col_at,
                 .grid_w = p->grid_w,
                 .grid_x = x0,
                 .y_step = p->sx * VW,
                 .y_stride = (ptrdiff_t)w->h * w->w * VW,
                 .add = add,
                 .relu = c->turned && c->relu};

    for (int d = cy; d <= p->reach_y; d += p->sy)
        if (is_row(c, p, d)) s->row_at[rows++] = d / p->sy;
    for (int d = cx; d <= p->reach_x; d += p->sx)
        if (is_col(c, p, d)) s->col_at[cols++] = d / p->sx;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            for (int o = 0; o < w->o; o++)
                *off++ = ((o * p->h - s->row_at[i]) * p->w - s->col_at[j]) * point;
    taps = rows * cols * w->o;
    r.cols = cols;
    for (int t = 0; t < tiles; t++) {
        const int first = part_start(w->c, tiles, t), m = part_start(w->c, tiles, t + 1) - first;

        for (int y = y0; cy + y * p->sy < w->ph + w->h; y++) {
            const int row = cy + y * p->sy - w->ph, col = cx + x0 * p->sx - w->pw;
            int from = 0, to = rows;

            while (from < to && s->row_at[from] <= y - p->grid_h) from++;
            while (from < to && s->row_at[to - 1] > y) to--;
            r.rows = to - from;
            r.off = s->off + from * cols * w->o;
            r.bias = bias ? bias + first : NULL;
            r.w = packed + ((ptrdiff_t)first * taps + (ptrdiff_t)from * cols * w->o * m) * size;
            r.x = s->grid + ((ptrdiff_t)(p->top + y) * p->w + p->left + x0) * point;
            r.y = dx + (((ptrdiff_t)first * w->h + row) * w->w + col) * VW;
            if (p->patch)
                patch_row_of(m, &r);
            else
                TT_SIMD(lanes_row)(m, &r);
        }
    }
    return taps;
}

void TT_SIMD(lanes_dx)(const tt_conv *c, const tt_conv_args *a, const dx_plan *p,
                       const float *packed, void *scratch)
{
    const tt_window *w = &c->win;
    const ptrdiff_t x_size = (ptrdiff_t)w->c * w->h * w->w * VW;
    const ptrdiff_t y_size = (ptrdiff_t)w->o * (c->pool ? c->poh * c->pow_ : w->oh * w->ow) * VW;
    dx_scratch s;

    dx_cut(c, p, scratch, &s);
    memset(s.grid, 0, (size_t)w->o * p->h * p->w * (p->patch ? 2 : 1) * VB);
    for (int64_t i = 0; i < slices(a->n); i++) {
        const float *dy = a->dy + i * y_size, *weights = packed;
        const uint8_t *pick = c->pool ? a->pick + i * y_size : NULL;

        if (p->patch)
            fill_patches(c, p, dy, pick, s.grid);
        else
            TT_SIMD(lanes_spread)
        (c, w->o, 0, c->pool ? c->poh : w->oh, dy, pick, (ptrdiff_t)p->h * p->w, p->w,
         s.grid + ((ptrdiff_t)p->top * p->w + p->left) * VW);
        for (int cy = 0; cy < p->sy; cy++)
            for (int cx = 0; cx < p->sx; cx++)
                weights += (ptrdiff_t)w->c * (p->patch ? 4 : 1) *
                           dx_class(c, p, &s, cy, cx, weights, c->turned ? a->b : NULL,
                                    a->dx + i * x_size, a->dx_add);
    }
}
