/* One element at a time: activations, sums, products, dropout. */
#include <math.h>

#include "tensor/ref/ref.h"

/* Of a normal variable: its distribution function and its density. */
static double normal_cdf(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}
static double normal_density(double x)
{
    return exp(-0.5 * x * x) * M_SQRT1_2 / sqrt(M_PI);
}

static double gelu_u(double x)
{
    return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

static double unary(tt_unary f, double x)
{
    switch (f) {
    case TT_RELU:
        return x < 0 ? 0 : x; /* not a number stays so */
    case TT_GELU:
        return x * normal_cdf(x);
    case TT_GELU_TANH:
        return 0.5 * x * (1 + tanh(gelu_u(x)));
    case TT_TANH:
        return tanh(x);
    case TT_SIGMOID:
        return 1 / (1 + exp(-x));
    }
    TT_ASSERT(!"unary");
}

static double unary_slope(tt_unary f, double x, double y)
{
    switch (f) {
    case TT_RELU:
        return y <= 0 ? 0 : 1;
    case TT_GELU:
        return normal_cdf(x) + x * normal_density(x);
    case TT_GELU_TANH: {
        double t = tanh(gelu_u(x)), du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
    }
    case TT_TANH:
        return 1 - y * y;
    case TT_SIGMOID:
        return y * (1 - y);
    }
    TT_ASSERT(!"unary");
}

void REF(unary_forward)(tt_unary f, int64_t n, const tt_act *x, tt_act *y)
{
    for (int64_t i = 0; i < n; i++) set(&y[i], unary(f, get(x[i])));
}

void REF(unary_backward)(tt_unary f, int64_t n, const tt_act *x, const tt_act *y, const tt_act *dy,
                         tt_act *dx, bool add)
{
    for (int64_t i = 0; i < n; i++)
        put(&dx[i], get(dy[i]) * unary_slope(f, x ? get(x[i]) : 0, y ? get(y[i]) : 0), add);
}

void REF(add)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y)
{
    for (int64_t i = 0; i < n; i++) set(&y[i], get(a[i]) + get(b[i]));
}

void REF(mul)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y, bool accumulate)
{
    for (int64_t i = 0; i < n; i++) put(&y[i], get(a[i]) * get(b[i]), accumulate);
}

void REF(shift)(int64_t n, const tt_act *x, const float *w, tt_act *y)
{
    for (int64_t i = 0; i < n; i++) set(&y[i], get(x[i]) + w[i]);
}

void REF(gather)(int64_t n, const tt_act *dy, float *dw, bool add)
{
    for (int64_t i = 0; i < n; i++) put_float(&dw[i], get(dy[i]), add);
}

void REF(widen)(int64_t n, const tt_act *x, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = (float)get(x[i]);
}

void REF(narrow)(int64_t n, const float *x, tt_act *y, bool add)
{
    for (int64_t i = 0; i < n; i++) put(&y[i], x[i], add);
}

void REF(scale)(int64_t n, float k, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] *= k;
}

/* The sample's own key is drawn with the layer's; elements then count in fours. */
void REF(dropout)(const tt_drop_args *a)
{
    int64_t per = a->c * a->hw;
    float scale = a->p < 1 ? 1 / (1 - a->p) : 0;

    TT_ASSERT(a->layout == TT_PLAIN);
    for (int n = 0; n < a->n; n++) {
        tt_u128 r = tt_philox(a->key, a->place[2 * n], a->place[2 * n + 1]);
        uint64_t key = (uint64_t)r.v[1] << 32 | r.v[0];
        for (int64_t e = 0; e < per; e++) {
            float u[4];
            tt_uniform4(key, 0, (uint64_t)e / 4, u);
            float kept = u[e % 4] >= a->p ? (float)get(a->x[n * per + e]) * scale : 0;
            put(&a->y[n * per + e], kept, a->add);
        }
    }
}

void REF(reorder)(int n, int64_t c, int64_t hw, tt_layout from, const tt_act *x, tt_layout to,
                  tt_act *y, bool add)
{
    TT_ASSERT(from != TT_LANES && to != TT_LANES);
    for (int64_t i = 0; i < n * c * hw; i++) { /* of `y`, and where it is in PLAIN and NHWC */
        int64_t image = i / (c * hw) * c * hw, k = i - image, at = i;
        if (to == TT_NHWC && from == TT_PLAIN) at = image + k % c * hw + k / c;
        if (to == TT_PLAIN && from == TT_NHWC) at = image + k % hw * c + k / hw;
        put(&y[i], get(x[at]), add);
    }
}
