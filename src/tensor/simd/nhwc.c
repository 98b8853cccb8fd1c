/* nhwc: the entry points: packing of weights, and the order of a backward pass. */
#include "tensor/simd/nhwc.h"

/* ---- packing ----
 * Forward: for each group, panels of output channels, each (kh, kw, c / groups) rows of the panel's
 * width. Behind it, for dx: panels of input channels, each (kh, kw, o / groups) rows with the taps
 * in reverse. The width of the last panel is rounded up to whole vectors, and filled with zeros. */
static size_t packed_half(const tt_window *w, int rows, int columns)
{
    return (size_t)w->groups * w->kh * w->kw * rows * ceil_div(columns, VW) * VW;
}

static size_t packed_forward(const tt_window *w)
{
    return packed_half(w, w->c / w->groups, w->o / w->groups);
}

size_t TT_SIMD(nhwc_packed)(const tt_conv *c)
{
    const tt_window *w = &c->win;
    return packed_forward(w) + (c->lean ? 0 : packed_half(w, w->o / w->groups, w->c / w->groups));
}

/* One row of a panel: `width` of the elements at w, w + step, ...; zeros up to whole vectors. */
static void pack_row(const float *w, size_t step, int width, float *to)
{
    int j = 0;

    if (step == 1) {
        for (; j < width; j += VW) vstore(to + j, vload_n(w + j, vtake(j, width)));
        return;
    }
    for (; j < width; j++) to[j] = w[j * step];
    for (; j % VW; j++) to[j] = 0;
}

typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t v4i __attribute__((vector_size(16)));

/* Four elements of each of four rows become four rows of four. */
static ALWAYS_INLINE void turn4(const float *from, size_t step, float *const to[4])
{
    v4 a = *(const v4 *)from, b = *(const v4 *)(from + step);
    v4 c = *(const v4 *)(from + 2 * step), d = *(const v4 *)(from + 3 * step);
    v4 ab0 = __builtin_shuffle(a, b, (v4i){0, 4, 1, 5}),
       ab1 = __builtin_shuffle(a, b, (v4i){2, 6, 3, 7});
    v4 cd0 = __builtin_shuffle(c, d, (v4i){0, 4, 1, 5}),
       cd1 = __builtin_shuffle(c, d, (v4i){2, 6, 3, 7});

    *(v4 *)to[0] = __builtin_shuffle(ab0, cd0, (v4i){0, 1, 4, 5});
    *(v4 *)to[1] = __builtin_shuffle(ab0, cd0, (v4i){2, 3, 6, 7});
    *(v4 *)to[2] = __builtin_shuffle(ab1, cd1, (v4i){0, 1, 4, 5});
    *(v4 *)to[3] = __builtin_shuffle(ab1, cd1, (v4i){2, 3, 6, 7});
}

/* A panel of `width` output channels, whose weights are (width, rows) at w, rows in the order (c,
 * kh, kw). */
static void pack_forward(const float *w, int per, int taps, int width, float *to)
{
    size_t rows = (size_t)per * taps, wide = (size_t)ceil_div(width, VW) * VW, k = 0;
    /* Of w, a cache line of each row at a time, for its rows may lie so that few are cached
     * together. With several taps that holds for the packed rows, which are then finished one by
     * one. */
    size_t line = taps > 1 ? 4 : 16;

    for (; k + line <= rows && wide == (size_t)width; k += line) {
        float *row[16];
        for (size_t i = 0; i < line; i++)
            row[i] = to + ((k + i) % taps * per + (k + i) / taps) * wide;
        for (int j = 0; j < width; j += 4)
            for (size_t i = 0; i < line; i += 4) {
                float *at[4] = {row[i] + j, row[i + 1] + j, row[i + 2] + j, row[i + 3] + j};
                turn4(w + j * rows + k + i, rows, at);
            }
    }
    for (; k < rows; k++) pack_row(w + k, rows, width, to + (k % taps * per + k / taps) * wide);
}

/* A panel of `width` input channels, from the one at w on; o steps by `step`. */
static void pack_backward(const float *w, int outs, size_t step, int taps, int width, float *to)
{
    size_t wide = (size_t)ceil_div(width, VW) * VW;

    for (int o = 0; o < outs; o++)
        for (int t = 0; t < taps; t++)
            pack_row(w + o * step + t, taps, width,
                     to + ((size_t)(taps - 1 - t) * outs + o) * wide);
}

void TT_SIMD(nhwc_pack)(const tt_conv *c, const float *w, float *packed)
{
    const tt_window *win = &c->win;
    int per = win->c / win->groups, outs = win->o / win->groups, taps = win->kh * win->kw;
    size_t step = (size_t)per * taps;
    float *fwd = packed, *bwd = packed + packed_forward(win);

    for (int g = 0; g < win->groups; g++, w += outs * step) {
        for (int o = 0; o < outs; o += PANEL) {
            int width = min_int(PANEL, outs - o);
            pack_forward(w + o * step, per, taps, width, fwd);
            fwd += step * ceil_div(width, VW) * VW;
        }
        for (int i = 0; i < per && !c->lean; i += PANEL) {
            int width = min_int(PANEL, per - i);
            pack_backward(w + (size_t)i * taps, outs, step, taps, width, bwd);
            bwd += (size_t)outs * taps * ceil_div(width, VW) * VW;
        }
    }
}

size_t TT_SIMD(nhwc_scratch)(const tt_conv *c, int n)
{
    gather fwd = gather_forward(c, n), bwd = gather_backward(c, n);
    weight dw = {.win = &c->win, .n = n};
    size_t most = TT_SIMD(nhwc_gather_scratch)(&fwd), more = TT_SIMD(nhwc_gather_scratch)(&bwd);

    if (more > most) most = more;
    more = c->lean ? TT_SIMD(dense_dx_scratch)(c->win.c) : 0;
    if (more > most) most = more;
    more = TT_SIMD(nhwc_weight_scratch)(&dw);
    return more > most ? more : most;
}

/* Transposed, y is what dx of the convolution would be. */
void TT_SIMD(nhwc_forward)(const tt_conv *c, const tt_conv_args *a)
{
    gather g = c->turned ? gather_backward(c, a->n) : gather_forward(c, a->n);

    g.in = a->x, g.out = a->y, g.bias = a->b, g.relu = c->relu;
    g.packed = a->packed + (c->turned ? packed_forward(&c->win) : 0);
    TT_SIMD(nhwc_gather)(&g, a->scratch);
}

/* ---- backward ---- */
void TT_SIMD(nhwc_backward)(const tt_conv *c, const tt_conv_args *a)
{
    const tt_window *w = &c->win;
    const bool turned = c->turned; /* then x and dy change places */
    const int64_t pixels = (int64_t)a->n * (turned ? w->h * w->w : w->oh * w->ow);
    const int outs = turned ? w->c : w->o;

    if (c->relu) relu_mask(pixels * outs, a->y, a->dy);
    if (a->db) bias_gradient(pixels, outs, a->dy, a->db, a->dw_add);
    if (a->dw) {
        weight d = {.win = w,
                    .n = a->n,
                    .x = turned ? a->dy : a->x,
                    .dy = turned ? a->x : a->dy,
                    .dw = a->dw,
                    .add = a->dw_add};
        TT_SIMD(nhwc_weight)(&d, a->scratch);
    }
    if (a->dx && c->lean) {
        TT_SIMD(dense_dx)(c, a);
    } else if (a->dx) {
        gather g = turned ? gather_forward(c, a->n) : gather_backward(c, a->n);
        g.in = a->dy, g.out = a->dx, g.add = a->dx_add;
        g.packed = a->packed + (turned ? 0 : packed_forward(w));
        TT_SIMD(nhwc_gather)(&g, a->scratch);
    }
}
