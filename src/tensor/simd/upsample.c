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

/* Over all outputs, in their order. */
void TT_SIMD(upsample_forward)(const tt_upsample_args *a)
{
    int64_t image = (int64_t)a->h * a->w * a->inner, at = 0;

    for (int64_t o = 0; o < a->outer; o++)
        for (int row = 0; row < a->h * a->sh; row++) {
            between r = source_of(row / a->sh, row % a->sh, a->sh, a->h, a->bilinear);
            for (int x = 0; x < a->w; x++)
                for (int phase = 0; phase < a->sw; phase++, at += a->inner) {
                    corners c = corners_of(a, r, source_of(x, phase, a->sw, a->w, a->bilinear));
                    blend(a, &c, a->x + o * image, a->y + at);
                }
        }
}

/* The share that input `i` has of output `at`. */
static ALWAYS_INLINE float share_of(int at, int i, int times, int size, bool bilinear)
{
    between b = source_of(at / times, at % times, times, size, bilinear);

    return b.low == i ? b.of_low : b.high == i ? b.of_high : 0;
}

/* Outputs that input `i` may have a share of: from *first up to the one that is returned. */
static int outputs_of(int i, int times, int size, bool bilinear, int *first)
{
    *first = (bilinear && i > 0 ? i - 1 : i) * times;
    return (bilinear && i + 1 < size ? i + 2 : i + 1) * times;
}

/* An input's gradient is summed, and then stored: in bf16 to store each sum would round it. */
static void collect(const tt_upsample_args *a, const tt_act *dy, int y, int x, tt_act *dx)
{
    enum { MOST = 8 };
    int r0, r1 = outputs_of(y, a->sh, a->h, a->bilinear, &r0);
    int c0, c1 = outputs_of(x, a->sw, a->w, a->bilinear, &c0);

    for (int64_t i = 0; i < a->inner; i += MOST * VW) {
        int n = (int)((a->inner - i + VW - 1) / VW);
        vf sum[MOST];
        if (n > MOST) n = MOST;
        for (int k = 0; k < n; k++) sum[k] = vzero();
        for (int r = r0; r < r1; r++) {
            float of_row = share_of(r, y, a->sh, a->h, a->bilinear);
            for (int c = c0; c < c1 && of_row > 0; c++) {
                float share = of_row * share_of(c, x, a->sw, a->w, a->bilinear);
                const tt_act *from = dy + ((int64_t)r * a->w * a->sw + c) * a->inner + i;
                for (int k = 0; k < n && share > 0; k++)
                    sum[k] += vload_n(from + k * VW, vtake(i + k * VW, a->inner)) * share;
            }
        }
        for (int k = 0; k < n; k++)
            vput_n(dx + i + k * VW, sum[k], vtake(i + k * VW, a->inner), a->dx_add);
    }
}

void TT_SIMD(upsample_backward)(const tt_upsample_args *a)
{
    int64_t image = (int64_t)a->h * a->w * a->inner;

    for (int64_t o = 0; o < a->outer; o++)
        for (int y = 0; y < a->h; y++)
            for (int x = 0; x < a->w; x++)
                collect(a, a->dy + o * image * a->sh * a->sw, y, x,
                        a->dx + o * image + ((int64_t)y * a->w + x) * a->inner);
}
