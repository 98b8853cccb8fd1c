/* nhwc: convolution and dense layers with channels innermost; private to the nhwc_*.c files.
 *
 * Two engines, each a loop around one family of register tiles of TILE_M rows x TILE_NV vectors:
 *   - gather (nhwc_gather.c), for y and dx: a row is an output pixel, addressed by a pointer of its
 *     own, a column an output channel; the sum runs over kernel taps and channels;
 *   - weight (nhwc_weight.c), for dw: a row is an output channel, a column an input channel; the
 * sum runs over pixels. Neither multiplies padding: taps that fall outside the image are left out,
 * not read as zero. */
#ifndef TT_SIMD_NHWC_H
#define TT_SIMD_NHWC_H

#include "tensor/simd/conv.h"

/* TILE_M x TILE_NV accumulators, TILE_NV vectors of one operand and a broadcast of the other must
 * fit in the registers; the pointers of TILE_M rows must fit in the general ones. */
#if defined(TT_512) || TT_IS_WIDE
#define TILE_NV 4
#else
#define TILE_NV 2
#endif
enum {
    TILE_M = 6,
    PANEL = TILE_NV * VW,
};

/* Each engine defines TILE(m, nv), which makes the function tile_<m>x<nv>: TILES makes all of them,
 * TILE_TABLE[nv - 1][m - 1] is their table. */
#define TILE_ROW(nv) TILE(1, nv) TILE(2, nv) TILE(3, nv) TILE(4, nv) TILE(5, nv) TILE(6, nv)
#define TILE_NAMES(nv)                                                                             \
    {                                                                                              \
        tile_1x##nv, tile_2x##nv, tile_3x##nv, tile_4x##nv, tile_5x##nv, tile_6x##nv               \
    }
/* clang-format off */
#if TILE_NV == 4
#define TILES TILE_ROW(1) TILE_ROW(2) TILE_ROW(3) TILE_ROW(4)
#define TILE_TABLE {TILE_NAMES(1), TILE_NAMES(2), TILE_NAMES(3), TILE_NAMES(4)}
#else
#define TILES TILE_ROW(1) TILE_ROW(2)
#define TILE_TABLE {TILE_NAMES(1), TILE_NAMES(2)}
#endif
/* clang-format on */

/* What the gather engine computes for each group: out(p, j) = sum over taps and channels k of
 * in(source of p, k) * packed(tap, k, j), where `in` and `out` are images of one call. */
typedef struct gather {
    int n, groups;
    int ih, iw, ic; /* size of `in`; ic channels in all groups                     */
    int oh, ow, oc; /* size of `out`                                               */
    int kh, kw, sh, sw, ph, pw, dh, dw; /* the window, as the convolution has it */
    bool turned; /* dx: `in` is dy, and a tap moves the other way               */
    bool add, relu;
    const tt_act *in, *packed;
    const float *bias;
    tt_act *out;
} gather;

/* What the weight engine computes: dw from x and dy, as the convolution has them. */
typedef struct weight {
    const tt_window *win;
    int n;
    const tt_act *x, *dy;
    float *dw;
    bool add;
} weight;

size_t TT_SIMD(nhwc_gather_scratch)(const gather *g); /* bytes; needs no pointer set */
void TT_SIMD(nhwc_gather)(const gather *g, void *scratch);
size_t TT_SIMD(nhwc_weight_scratch)(const weight *d);
void TT_SIMD(nhwc_weight)(const weight *d, void *scratch);

/* Lanes of vector j of nv, whose last has fewer. */
#define LANES(j, nv, last) ((j) < (nv)-1 ? VW : (last))

/* A loop over rows or vectors of a tile: unrolled, so that the tile's arrays are registers. */
#define EACH(i, n) UNROLL(8) for (int i = 0; i < (n); i++)

/* While a block is computed, what the next one reads is fetched into L2, a few lines with each
 * tile: the processor's own guesses stop at the end of the short stretches that tiles read. */
typedef struct ahead {
    const char *at, *end;
    size_t step; /* bytes for each tile */
} ahead;
static inline void ahead_set(ahead *h, const float *from, size_t count, size_t tiles)
{
    h->at = (const char *)from, h->end = (const char *)(from + count);
    h->step = (count * sizeof *from / tiles + 64) / 64 * 64;
}
static inline void ahead_fetch(ahead *h)
{
    const char *stop = (size_t)(h->end - h->at) < h->step ? h->end : h->at + h->step;
    for (; h->at < stop; h->at += 64) __builtin_prefetch(h->at, 0, 2);
}

/* ---- What kernels of float32 and of bf16 (bf16_conv.c) both have ---- */

/* A convolution as the gather engine sees it. */
static inline gather gather_forward(const tt_conv *c, int n)
{
    const tt_window *w = &c->win;
    return (gather){.n = n,
                    .groups = w->groups,
                    .ih = w->h,
                    .iw = w->w,
                    .ic = w->c,
                    .oh = w->oh,
                    .ow = w->ow,
                    .oc = w->o,
                    .kh = w->kh,
                    .kw = w->kw,
                    .sh = w->sh,
                    .sw = w->sw,
                    .ph = w->ph,
                    .pw = w->pw,
                    .dh = w->dh,
                    .dw = w->dw};
}

/* The same with input and output changing places. */
static inline gather gather_backward(const tt_conv *c, int n)
{
    const tt_window *w = &c->win;
    gather g = gather_forward(c, n);

    g.ih = w->oh, g.iw = w->ow, g.ic = w->o;
    g.oh = w->h, g.ow = w->w, g.oc = w->c;
    g.turned = true;
    return g;
}

static inline void relu_mask(int64_t n, const tt_act *y, tt_act *dy)
{
    for (int64_t i = 0; i < n; i += VW) {
        int take = vtake(i, n);
        vf v = vload_n(y + i, take);
        vstore_n(dy + i, vpick(v <= 0, vzero(), vload_n(dy + i, take)), take);
    }
}

static ALWAYS_INLINE void bias_sum(int64_t pixels, int o, int nv, int last, const tt_act *dy,
                                   float *db, bool add)
{
    enum { BLOCK = 256 };
    vf sum[4], part[4];

    EACH(j, nv) sum[j] = add ? vload_n(db + j * VW, LANES(j, nv, last)) : vzero();
    for (int64_t p = 0; p < pixels; p += BLOCK) {
        int64_t end = p + BLOCK < pixels ? p + BLOCK : pixels;
        EACH(j, nv) part[j] = vzero();
        for (int64_t q = p; q < end; q++)
            EACH(j, nv) part[j] += vload_n(dy + q * o + j * VW, LANES(j, nv, last));
        EACH(j, nv) sum[j] += part[j];
    }
    EACH(j, nv) vstore_n(db + j * VW, sum[j], LANES(j, nv, last));
}

/* Sums of blocks of pixels, then their sum: a batch has many thousands, and float has 24 bits. Of
 * each pixel whole cache lines, for the next one may be in another page. */
static inline void bias_gradient(int64_t pixels, int o, const tt_act *dy, float *db, bool add)
{
    int j = 0;

    for (; j + 4 * VW <= o; j += 4 * VW) bias_sum(pixels, o, 4, VW, dy + j, db + j, add);
    for (; j < o; j += VW) bias_sum(pixels, o, 1, vtake(j, o), dy + j, db + j, add);
}

#endif
