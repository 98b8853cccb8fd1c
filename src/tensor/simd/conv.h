/* conv: the two ways of convolving, one per layout, behind the table's conv_* (conv.c dispatches).
 *
 * nhwc takes every window, in TT_NHWC and TT_PLAIN; lanes takes TT_LANES, with groups == 1 alone.
 */
#ifndef TT_SIMD_CONV_H
#define TT_SIMD_CONV_H

#include "tensor/simd/simd.h"

size_t TT_SIMD(nhwc_packed)(const tt_conv *c); /* floats, 0 if none */
void TT_SIMD(nhwc_pack)(const tt_conv *c, const float *w, float *packed);
size_t TT_SIMD(nhwc_scratch)(const tt_conv *c, int n); /* bytes */
void TT_SIMD(nhwc_forward)(const tt_conv *c, const tt_conv_args *a);
void TT_SIMD(nhwc_backward)(const tt_conv *c, const tt_conv_args *a);

size_t TT_SIMD(lanes_packed)(const tt_conv *c);
void TT_SIMD(lanes_pack)(const tt_conv *c, const float *w, float *packed);
size_t TT_SIMD(lanes_scratch)(const tt_conv *c, int n);
void TT_SIMD(lanes_forward)(const tt_conv *c, const tt_conv_args *a);
void TT_SIMD(lanes_backward)(const tt_conv *c, const tt_conv_args *a);

#endif
