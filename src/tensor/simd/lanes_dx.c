/* lanes_dx: the gradient of the input.
 *
 * Behind pooling only one output of each window has a gradient, but which one differs from lane to lane.
 * So the sums run over pooled outputs: for each, the (up to 4) weights that the places of the window would
 * use form a patch, and a shuffle lets every lane take the weight of its own place. With a 2 x 2 window and
 * a 5 x 5 kernel a pixel costs 9 multiplications in place of 25. Without pooling, and where there is no
 * such shuffle or the window is larger, the grid is that of the outputs and a patch is one weight. */
#include "tensor/simd/lanes.h"

/* ---- Which taps there are ---- */

/* The weight (of k, `dil` apart) that place r of a window (`stride` apart) uses at distance d; -1: none. */
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

static int count_taps(int first, int step, int reach, int places, int stride, int dil, int k)
{
    int n = 0;

    for (int d = first; d <= reach; d += step) n += is_tap(d, places, stride, dil, k);
    return n;
}

static int class_taps(const tt_conv *c, const dx_plan *p, int cy, int cx)
{
    const tt_window *w = &c->win;

    return w->o * count_taps(cy, p->sy, p->reach_y, p->rows, w->sh, w->dh, w->kh) *
           count_taps(cx, p->sx, p->reach_x, p->cols, w->sw, w->dw, w->kw);
}

dx_plan TT_SIMD(lanes_dx_plan)(const tt_conv *c)
{
    const tt_window *w = &c->win;
    dx_plan p = {.rows = 1, .cols = 1, .sy = w->sh, .sx = w->sw, .grid_h = w->oh, .grid_w = w->ow,
                 .most = ROWS_MOST};
    int last;

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
    p.taps = w->o * count_taps(0, 1, p.reach_y, p.rows, w->sh, w->dh, w->kh) *
             count_taps(0, 1, p.reach_x, p.cols, w->sw, w->dw, w->kw);
    return p;
}

void TT_SIMD(lanes_dx_taps)(const tt_conv *c, const dx_plan *p, int32_t *off)
{
    const tt_window *w = &c->win;

    for (int cy = 0; cy < p->sy; cy++)
        for (int cx = 0; cx < p->sx; cx++)
            for (int o = 0; o < w->o; o++)
                for (int y = cy; y <= p->reach_y; y += p->sy) {
                    if (!is_tap(y, p->rows, w->sh, w->dh, w->kh)) continue;
                    for (int x = cx; x <= p->reach_x; x += p->sx)
                        if (is_tap(x, p->cols, w->sw, w->dw, w->kw))
                            *off++ = ((o * p->h - y / p->sy) * p->w - x / p->sx) * VW *
                                     (p->patch ? 2 : 1);
                }
}

/* ---- Packing: [class][tile of input channels][tap][channel of the tile][1 or 4] ---- */
size_t TT_SIMD(lanes_dx_packed)(const tt_conv *c)
{
    dx_plan p = TT_SIMD(lanes_dx_plan)(c);

    return (size_t)p.taps * c->win.c * (p.patch ? 4 : 1);
}

/* The weights of one tap for channels [first, last). */
static float *pack_tap(const tt_conv *c, const dx_plan *p, const float *w, int y, int x, int first,
                       int last, float *to)
{
    const tt_window *win = &c->win;
    const int places = p->rows * p->cols, size = p->patch ? 4 : 1;
    int at[4];

    for (int i = 0; i < size; i++) {
        int ky = i < places ? weight_at(y, i / p->cols, win->sh, win->dh, win->kh) : -1;
        int kx = i < places ? weight_at(x, i % p->cols, win->sw, win->dw, win->kw) : -1;

        at[i] = ky < 0 || kx < 0 ? -1 : ky * win->kw + kx;
    }
    for (int ch = first; ch < last; ch++)
        for (int i = 0; i < size; i++)
            *to++ = at[i] < 0 ? 0 : w[(ptrdiff_t)ch * win->kh * win->kw + at[i]];
    return to;
}

void TT_SIMD(lanes_dx_pack)(const tt_conv *c, const float *w, float *packed)
{
    const tt_window *win = &c->win;
    const dx_plan p = TT_SIMD(lanes_dx_plan)(c);
    const int tiles = parts(win->c, p.most);
    const ptrdiff_t filter = (ptrdiff_t)win->c * win->kh * win->kw;

    for (int cy = 0; cy < p.sy; cy++)
        for (int cx = 0; cx < p.sx; cx++)
            for (int t = 0; t < tiles; t++)
                for (int o = 0; o < win->o; o++)
                    for (int y = cy; y <= p.reach_y; y += p.sy) {
                        if (!is_tap(y, p.rows, win->sh, win->dh, win->kh)) continue;
                        for (int x = cx; x <= p.reach_x; x += p.sx)
                            if (is_tap(x, p.cols, win->sw, win->dw, win->kw))
                                packed = pack_tap(c, &p, w + o * filter, y, x,
                                                  part_first(win->c, tiles, t),
                                                  part_first(win->c, tiles, t + 1), packed);
                    }
}

/* ---- Patches ---- */

/* Lane i: w[pick[i] & 3]. */
static ALWAYS_INLINE vf choose(const float *w, vi pick)
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

static ALWAYS_INLINE void patch_tile(const int m, const int n, const row_job *r, const float *x,
                                     float *y)
{
    vf sum[PATCH_MOST][2];
    const float *w = r->w;
    const int32_t *off = r->off, *end = off + r->taps;

    UNROLL(10) for (int i = 0; i < m; i++)
        UNROLL(2) for (int j = 0; j < n; j++)
            sum[i][j] = r->add ? vload(y + i * r->y_stride + j * r->y_step) : vzero();
    for (; off < end; off++, w += m * 4) {
        const float *p = x + *off;
        vf g[2];
        vi pick[2];

        UNROLL(2) for (int j = 0; j < n; j++) {
            g[j] = vload(p + j * 2 * VW);
            pick[j] = (vi)vload(p + j * 2 * VW + VW);
        }
        UNROLL(10) for (int i = 0; i < m; i++)
            UNROLL(2) for (int j = 0; j < n; j++) sum[i][j] += choose(w + i * 4, pick[j]) * g[j];
    }
    UNROLL(10) for (int i = 0; i < m; i++)
        UNROLL(2) for (int j = 0; j < n; j++)
            vstore(y + i * r->y_stride + j * r->y_step, sum[i][j]);
}

static ALWAYS_INLINE void patch_row(const int m, const row_job *r)
{
    const float *x = r->x;
    float *y = r->y;
    int i = 0;

    for (; i + 2 <= r->count; i += 2, x += 4 * VW, y += 2 * r->y_step) patch_tile(m, 2, r, x, y);
    if (i < r->count) patch_tile(m, 1, r, x, y);
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
void TT_SIMD(lanes_spread)(const tt_conv *c, int channels, const float *dy, const uint8_t *pick,
                           ptrdiff_t plane, int w, float *to)
{
    if (!c->pool) {
        for (int o = 0; o < channels; o++)
            for (int i = 0; i < c->win.oh; i++, dy += c->win.ow * VW)
                memcpy(to + (o * plane + (ptrdiff_t)i * w) * VW, dy, (size_t)c->win.ow * VB);
        return;
    }
    for (int o = 0; o < channels; o++)
        for (int i = 0; i < c->poh; i++)
            for (int j = 0; j < c->pow_; j++, dy += VW, pick += VW) {
                float *p = to + (o * plane + (ptrdiff_t)i * c->psh * w + j * c->psw) * VW;
                const vf g = vload(dy);
                const vi won = pick_load(pick);

                for (int y = 0; y < c->pkh; y++)
                    for (int x = 0; x < c->pkw; x++)
                        vstore(p + ((ptrdiff_t)y * w + x) * VW, (vf)((vi)g & (won == y * c->pkw + x)));
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

void TT_SIMD(lanes_dx_slice)(const tt_conv *c, const dx_plan *p, const float *packed, const int32_t *off,
                             const float *dy, const uint8_t *pick, float *grid, float *dx, bool add)
{
    const tt_window *w = &c->win;
    const int tiles = parts(w->c, p->most), size = p->patch ? 4 : 1, point = p->patch ? 2 * VW : VW;

    if (p->patch)
        fill_patches(c, p, dy, pick, grid);
    else
        TT_SIMD(lanes_spread)
        (c, w->o, dy, pick, (ptrdiff_t)p->h * p->w, p->w, grid + ((ptrdiff_t)p->top * p->w + p->left) * VW);

    for (int cy = 0; cy < p->sy; cy++)
        for (int cx = 0; cx < p->sx; cx++) {
            const int taps = class_taps(c, p, cy, cx);
            /* Grid points of the first and last pixels of the class: cy + sy * point = ph + pixel. */
            const int y0 = w->ph > cy ? parts(w->ph - cy, p->sy) : 0;
            const int x0 = w->pw > cx ? parts(w->pw - cx, p->sx) : 0;
            const int left = w->pw + w->w - cx - x0 * p->sx;
            row_job r = {.x_step = point, .count = left > 0 ? parts(left, p->sx) : 0, .off = off,
                         .taps = taps, .y_step = p->sx * VW, .add = add,
                         .y_stride = (ptrdiff_t)w->h * w->w * VW};

            for (int t = 0; t < tiles; t++) {
                int first = part_first(w->c, tiles, t), m = part_first(w->c, tiles, t + 1) - first;

                r.w = packed + (ptrdiff_t)first * taps * size;
                for (int y = y0; cy + y * p->sy < w->ph + w->h; y++) {
                    int row = cy + y * p->sy - w->ph, col = cx + x0 * p->sx - w->pw;

                    r.x = grid + ((ptrdiff_t)(p->top + y) * p->w + p->left + x0) * point;
                    r.y = dx + (((ptrdiff_t)first * w->h + row) * w->w + col) * VW;
                    if (p->patch)
                        patch_row_of(m, &r);
                    else
                        TT_SIMD(lanes_row)(m, &r);
                }
            }
            off += taps;
            packed += (ptrdiff_t)w->c * taps * size;
        }
}
