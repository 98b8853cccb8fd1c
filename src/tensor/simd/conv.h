/* conv: the two ways of convolving, one per layout, behind the table's conv_* (conv.c dispatches).
 *
 * nhwc takes every window, in TT_NHWC (which of vectors is TT_PLAIN too); lanes takes TT_LANES,
 * with groups == 1 alone. */
#ifndef TT_SIMD_CONV_H
#define TT_SIMD_CONV_H

#include "tensor/simd/simd.h"

size_t TT_SIMD(nhwc_packed)(const tt_conv *c); /* floats, 0 if none */
void TT_SIMD(nhwc_pack)(const tt_conv *c, const float *w, float *packed);
size_t TT_SIMD(nhwc_scratch)(const tt_conv *c, int n); /* bytes */
void TT_SIMD(nhwc_forward)(const tt_conv *c, const tt_conv_args *a);
void TT_SIMD(nhwc_backward)(const tt_conv *c, const tt_conv_args *a);

size_t TT_SIMD(dense_dx_scratch)(int c); /* of so many inputs, bytes */
void TT_SIMD(dense_dx)(const tt_conv *c, const tt_conv_args *a);

size_t TT_SIMD(lanes_packed)(const tt_conv *c);
void TT_SIMD(lanes_pack)(const tt_conv *c, const float *w, float *packed);
size_t TT_SIMD(lanes_scratch)(const tt_conv *c, int n);
void TT_SIMD(lanes_forward)(const tt_conv *c, const tt_conv_args *a);
void TT_SIMD(lanes_backward)(const tt_conv *c, const tt_conv_args *a);

/* ---- What both use ---- */

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

/* The i-th of `parts` nearly equal parts of n starts here. */
static inline int part_start(int n, int parts, int i)
{
    return n / parts * i + min_int(i, n % parts);
}

#endif
