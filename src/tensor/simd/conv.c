/* Which layout a convolution runs in, and the way to its kernels. */
#include "tensor/simd/conv.h"
#include "tensor/simd/table.h"

/* Below this many channels on both sides, channels do not fill vectors and samples do. */
enum { FEW_CHANNELS = 32 };

static bool dense(const tt_window *w)
{
    return w->h == 1 && w->w == 1 && w->kh == 1 && w->kw == 1 && w->oh == 1 && w->ow == 1;
}

/* LANES counts floats within a slice of VW samples, padding included, in 32 bits. */
static bool fits(const tt_window *w)
{
    double high = (double)w->h + 2.0 * w->ph + (double)w->kh * w->dh,
           wide = (double)w->w + 2.0 * w->pw + (double)w->kw * w->dw;

    return high * wide * (w->c > w->o ? w->c : w->o) * VW * 4 <= INT32_MAX;
}

tt_layout TT_SIMD(conv_layout)(const tt_window *w, int n)
{
    bool few = w->c <= FEW_CHANNELS && w->o <= FEW_CHANNELS;
    return n >= VW && w->groups == 1 && (few || dense(w)) && fits(w) ? TT_LANES : TT_NHWC;
}

size_t TT_SIMD(conv_packed)(const tt_conv *c)
{
    return c->layout == TT_LANES ? TT_SIMD(lanes_packed)(c) : TT_SIMD(nhwc_packed)(c);
}

void TT_SIMD(conv_pack)(const tt_conv *c, const float *w, float *packed)
{
    if (c->layout == TT_LANES)
        TT_SIMD(lanes_pack)(c, w, packed);
    else
        TT_SIMD(nhwc_pack)(c, w, packed);
}

size_t TT_SIMD(conv_scratch)(const tt_conv *c, int n)
{
    return c->layout == TT_LANES ? TT_SIMD(lanes_scratch)(c, n) : TT_SIMD(nhwc_scratch)(c, n);
}

void TT_SIMD(conv_forward)(const tt_conv *c, const tt_conv_args *a)
{
    if (c->layout == TT_LANES)
        TT_SIMD(lanes_forward)(c, a);
    else
        TT_SIMD(nhwc_forward)(c, a);
}

void TT_SIMD(conv_backward)(const tt_conv *c, const tt_conv_args *a)
{
    if (c->layout == TT_LANES)
        TT_SIMD(lanes_backward)(c, a);
    else
        TT_SIMD(nhwc_backward)(c, a);
}
