/* Larger images, in vectors of neighbours of one pixel: channels (NHWC) or samples (LANES). See
 * ref/upsample.c for the definitions. */
#include "tensor/simd/table.h"

/* Of one axis: the two inputs that an output lies between, and their shares. */
typedef struct between {
    int low, high;
    float of_low, of_high;
} between;

/* Output `phase` of the `times` that input `at` becomes. */
static ALWAYS_INLINE between source_of(int at, int phase, int times, int size, bool bilinear)
{
    float from = ((float)phase + 0.5f) / (float)times - 0.5f;
    between b = {at, at, 1, 0};

    if (!bilinear) return b;
    if (from < 0) b.low--, from++;
    b.high = b.low + 1;
    if (b.low < 0 || b.high >= size) { /* beyond the outermost centre */
        b.low = b.high = b.low < 0 ? 0 : size - 1;
        return b;
    }
    b.of_low = 1 - from;
    b.of_high = from;
    return b;
}

/* The four inputs of an output, and their shares. */
typedef struct corners {
    int64_t at[4];
    float share[4];
} corners;

static ALWAYS_INLINE corners corners_of(const tt_upsample_args *a, between r, between c)
{
    int64_t low = (int64_t)r.low * a->w, high = (int64_t)r.high * a->w;

    return (corners){
        {(low + c.low) * a->inner, (low + c.high) * a->inner, (high + c.low) * a->inner,
         (high + c.high) * a->inner},
        {r.of_low * c.of_low, r.of_low * c.of_high, r.of_high * c.of_low, r.of_high * c.of_high}};
}

static ALWAYS_INLINE void blend(const tt_upsample_args *a, const corners *c, const tt_act *x,
                                tt_act *y)
{
    for (int64_t i = 0; i < a->inner; i += VW) {
        int take = vtake(i, a->inner);
        vf v = vload_n(x + c->at[0] + i, take) * c->share[0];
        for (int k = 1; k < 4 && a->bilinear; k++)
            v += vload_n(x + c->at[k] + i, take) * c->share[k];
        vstore_n(y + i, v, take);
    }
}

/* Two of the corners may be the same: one is added after the other. */
static ALWAYS_INLINE void spread(const tt_upsample_args *a, const corners *c, const tt_act *dy,
                                 tt_act *dx)
{
    for (int64_t i = 0; i < a->inner; i += VW) {
        int take = vtake(i, a->inner);
        vf g = vload_n(dy + i, take);
        for (int k = 0; k < (a->bilinear ? 4 : 1); k++)
            vput_n(dx + c->at[k] + i, g * c->share[k], take, true);
    }
}

/* Over all outputs, in their order: from `x` to `y`, or back from `y`'s gradient to `x`'s. */
static ALWAYS_INLINE void each_output(const tt_upsample_args *a, bool back)
{
    int64_t image = (int64_t)a->h * a->w * a->inner, at = 0;

    for (int64_t o = 0; o < a->outer; o++)
        for (int row = 0; row < a->h * a->sh; row++) {
            between r = source_of(row / a->sh, row % a->sh, a->sh, a->h, a->bilinear);
            for (int x = 0; x < a->w; x++)
                for (int phase = 0; phase < a->sw; phase++, at += a->inner) {
                    corners c = corners_of(a, r, source_of(x, phase, a->sw, a->w, a->bilinear));
                    if (back)
                        spread(a, &c, a->dy + at, a->dx + o * image);
                    else
                        blend(a, &c, a->x + o * image, a->y + at);
                }
        }
}

void TT_SIMD(upsample_forward)(const tt_upsample_args *a)
{
    each_output(a, false);
}

void TT_SIMD(upsample_backward)(const tt_upsample_args *a)
{
    if (!a->dx_add) memset(a->dx, 0, (size_t)(a->outer * a->h * a->w * a->inner) * sizeof *a->dx);
    each_output(a, true);
}
