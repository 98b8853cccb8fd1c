/* nhwc: convolution and dense layers with channels innermost; private to the nhwc_*.c files.
 *
 * Two engines, each a loop around one family of register tiles of TILE_M rows x TILE_NV vectors:
 *   gather  y and dx: a row is an output pixel, addressed by a pointer of its own, a column an
 * output channel; the sum runs over kernel taps and channels (nhwc_gather.c) weight  dw: a row is
 * an output channel, a column an input channel; the sum runs over pixels (nhwc_weight.c) Neither
 * multiplies padding: taps that fall outside the image are left out, not read as zero. */
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

/* What the gather engine computes for each group: out(p, j) = sum over taps and channels k of
 * in(source of p, k) * packed(tap, k, j), where `in` and `out` are images of one call. */
typedef struct gather {
    int n, groups;
    int ih, iw, ic; /* size of `in`; ic channels in all groups                     */
    int oh, ow, oc; /* size of `out`                                               */
    int kh, kw, sh, sw, ph, pw, dh, dw; /* the window, as the convolution has it */
    bool turned; /* dx: `in` is dy, and a tap moves the other way               */
    bool add, relu;
    const float *in, *packed, *bias;
    float *out;
} gather;

/* What the weight engine computes: dw from x and dy, as the convolution has them. */
typedef struct weight {
    const tt_window *win;
    int n;
    const float *x, *dy;
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

/* Scratch is cut in pieces of whole cache lines; with base 0 the same calls measure it. */
typedef struct cutter {
    char *base;
    size_t used;
} cutter;
static inline void *cut(cutter *c, size_t bytes)
{
    size_t at = c->used;
    c->used += (bytes + 63) / 64 * 64;
    return c->base ? c->base + at : NULL;
}

static inline int min_int(int a, int b)
{
    return a < b ? a : b;
}
static inline int max_int(int a, int b)
{
    return a > b ? a : b;
}
static inline int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

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

/* The i-th of `parts` nearly equal parts of n starts here. */
static inline int part_start(int n, int parts, int i)
{
    return n / parts * i + min_int(i, n % parts);
}

#endif
