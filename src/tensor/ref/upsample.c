/* Larger images: nearest and bilinear, as PyTorch has them with align_corners off. */
#include <math.h>

#include "tensor/ref/ref.h"

/* Of output `at`: the two inputs it lies between, and the share of the second. */
typedef struct between {
    int low, high;
    double share;
} between;

static between source_of(int at, int times, int size, bool bilinear)
{
    double from = (at + 0.5) / times - 0.5;
    between b = {at / times, at / times, 0};

    if (!bilinear) return b;
    if (from < 0) from = 0;
    b.low = (int)floor(from);
    b.high = b.low + 1 < size ? b.low + 1 : size - 1;
    b.share = from - b.low;
    return b;
}

static int64_t x_at(const tt_upsample_args *a, int64_t o, int y, int x, int64_t i)
{
    return ((o * a->h + y) * a->w + x) * a->inner + i;
}
static int64_t y_at(const tt_upsample_args *a, int64_t o, int y, int x, int64_t i)
{
    return ((o * a->h * a->sh + y) * a->w * a->sw + x) * a->inner + i;
}

void REF(upsample_forward)(const tt_upsample_args *a)
{
    for (int64_t o = 0; o < a->outer; o++)
        for (int y = 0; y < a->h * a->sh; y++)
            for (int x = 0; x < a->w * a->sw; x++) {
                between r = source_of(y, a->sh, a->h, a->bilinear),
                        c = source_of(x, a->sw, a->w, a->bilinear);
                for (int64_t i = 0; i < a->inner; i++) {
                    double low = (1 - c.share) * get(a->x[x_at(a, o, r.low, c.low, i)]) +
                                 c.share * get(a->x[x_at(a, o, r.low, c.high, i)]);
                    double high = (1 - c.share) * get(a->x[x_at(a, o, r.high, c.low, i)]) +
                                  c.share * get(a->x[x_at(a, o, r.high, c.high, i)]);
                    set(&a->y[y_at(a, o, y, x, i)], (1 - r.share) * low + r.share * high);
                }
            }
}

/* How much of input `at` is in an output that lies between those of b. */
static double share_of(between b, int at)
{
    return (b.low == at ? 1 - b.share : 0) + (b.high == at ? b.share : 0);
}

/* Gathered from all outputs of its rows and columns: what is not near has no share. */
static double dx_at(const tt_upsample_args *a, int64_t o, int y, int x, int64_t i)
{
    double sum = 0;

    for (int oy = 0; oy < a->h * a->sh; oy++) {
        double row = share_of(source_of(oy, a->sh, a->h, a->bilinear), y);
        for (int ox = 0; ox < a->w * a->sw && row > 0; ox++)
            sum += row * share_of(source_of(ox, a->sw, a->w, a->bilinear), x) *
                   get(a->dy[y_at(a, o, oy, ox, i)]);
    }
    return sum;
}

void REF(upsample_backward)(const tt_upsample_args *a)
{
    for (int64_t o = 0; o < a->outer; o++)
        for (int y = 0; y < a->h; y++)
            for (int x = 0; x < a->w; x++)
                for (int64_t i = 0; i < a->inner; i++)
                    put(&a->dx[x_at(a, o, y, x, i)], dx_at(a, o, y, x, i), a->dx_add);
}
