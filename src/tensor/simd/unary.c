/* One element at a time, in every layout alike. */
#include "tensor/simd/table.h"
#include "tensor/simd/vmath.h"

/* x / 2 (1 + tanh u) is x sigmoid(2 u). */
static ALWAYS_INLINE vf gelu_share(vf x)
{
    return vsigmoid(x * (x * x * (2 * 0.79788456f * 0.044715f) + 2 * 0.79788456f));
}

static ALWAYS_INLINE vf unary(tt_unary f, vf x)
{
    vf density;

    switch (f) {
    case TT_RELU:
        return vrelu(x);
    case TT_GELU:
        return x * vnormal(x, &density);
    case TT_GELU_TANH:
        return x * gelu_share(x);
    case TT_TANH:
        return vtanh(x);
    default:
        return vsigmoid(x);
    }
}

static ALWAYS_INLINE vf unary_slope(tt_unary f, vf x, vf y)
{
    vf density, share;

    switch (f) {
    case TT_RELU:
        return vpick(y <= 0, vzero(), vset1(1));
    case TT_GELU:
        share = vnormal(x, &density);
        /* Far out the density is 0 before x is infinite. */
        return share + vpick(density == 0, vzero(), x * density);
    case TT_GELU_TANH:
        share = gelu_share(x);
        density = share * (1.0f - share);
        return share +
               vpick(density == 0, vzero(),
                     x * density * (x * x * (6 * 0.79788456f * 0.044715f) + 2 * 0.79788456f));
    case TT_TANH:
        return 1.0f - y * y;
    default:
        return y * (1.0f - y);
    }
}

/* f is a constant where these are called, so that each loop holds one function. */
static ALWAYS_INLINE void forward(tt_unary f, int64_t n, const tt_act *x, tt_act *y)
{
    int64_t i = 0;

    for (; i + VW <= n; i += VW) vstore(y + i, unary(f, vload(x + i)));
    if (i < n) vstore_part(y + i, unary(f, vload_part(x + i, (int)(n - i))), (int)(n - i));
}

void TT_SIMD(unary_forward)(tt_unary f, int64_t n, const tt_act *x, tt_act *y)
{
    switch (f) {
    case TT_RELU:
        forward(TT_RELU, n, x, y);
        break;
    case TT_GELU:
        forward(TT_GELU, n, x, y);
        break;
    case TT_GELU_TANH:
        forward(TT_GELU_TANH, n, x, y);
        break;
    case TT_TANH:
        forward(TT_TANH, n, x, y);
        break;
    case TT_SIGMOID:
        forward(TT_SIGMOID, n, x, y);
        break;
    }
}

/* `in`: what the slope is computed from, x or y. */
static ALWAYS_INLINE void backward(tt_unary f, int64_t n, const tt_act *in, const tt_act *dy,
                                   tt_act *dx, bool add)
{
    for (int64_t i = 0; i < n; i += VW) {
        int k = vtake(i, n);
        vf v = vload_n(in + i, k);
        vput_n(dx + i, vload_n(dy + i, k) * unary_slope(f, v, v), k, add);
    }
}

void TT_SIMD(unary_backward)(tt_unary f, int64_t n, const tt_act *x, const tt_act *y,
                             const tt_act *dy, tt_act *dx, bool add)
{
    switch (f) {
    case TT_RELU:
        backward(TT_RELU, n, y, dy, dx, add);
        break;
    case TT_GELU:
        backward(TT_GELU, n, x, dy, dx, add);
        break;
    case TT_GELU_TANH:
        backward(TT_GELU_TANH, n, x, dy, dx, add);
        break;
    case TT_TANH:
        backward(TT_TANH, n, y, dy, dx, add);
        break;
    case TT_SIGMOID:
        backward(TT_SIGMOID, n, y, dy, dx, add);
        break;
    }
}

/* Spelled out because y may be a: the compiler would fall back to single elements then. */
void TT_SIMD(add)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y)
{
    for (int64_t i = 0; i < n; i += VW) {
        int k = vtake(i, n);
        vstore_n(y + i, vload_n(a + i, k) + vload_n(b + i, k), k);
    }
}

void TT_SIMD(mul)(int64_t n, const tt_act *a, const tt_act *b, tt_act *y, bool accumulate)
{
    for (int64_t i = 0; i < n; i += VW) {
        int k = vtake(i, n);
        vput_n(y + i, vload_n(a + i, k) * vload_n(b + i, k), k, accumulate);
    }
}

void TT_SIMD(shift)(int64_t n, const tt_act *x, const float *w, tt_act *y)
{
    for (int64_t i = 0; i < n; i += VW) {
        int k = vtake(i, n);
        vstore_n(y + i, vload_n(x + i, k) + vload_n(w + i, k), k);
    }
}

void TT_SIMD(gather)(int64_t n, const tt_act *dy, float *dw, bool add)
{
    for (int64_t i = 0; i < n; i += VW) {
        int k = vtake(i, n);
        vput_n(dw + i, vload_n(dy + i, k), k, add);
    }
}

void TT_SIMD(widen)(int64_t n, const tt_act *x, float *y)
{
    TT_SIMD(gather)(n, x, y, false);
}

void TT_SIMD(narrow)(int64_t n, const float *x, tt_act *y, bool add)
{
    for (int64_t i = 0; i < n; i += VW) {
        int k = vtake(i, n);
        vput_n(y + i, vload_n(x + i, k), k, add);
    }
}

void TT_SIMD(scale)(int64_t n, float k, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] *= k;
}
