/* vmath: functions of vectors, to about 2 units in the last place unless a line says otherwise. */
#ifndef TT_SIMD_VMATH_H
#define TT_SIMD_VMATH_H

#include "tensor/simd/simd.h"

static ALWAYS_INLINE vf vabs(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}
static ALWAYS_INLINE vf vsign_of(vf x, vf sign)
{
    return (vf)(((vi)x & 0x7fffffff) | ((vi)sign & (int32_t)0x80000000));
}

/* 0 and infinity beyond the range of floats; not a number stays so.
 * exp x = 2^n exp r with |r| <= ln 2 / 2; the coefficients are those of the Cephes library. */
static ALWAYS_INLINE vf vexp(vf x)
{
    const float round = 0x1.8p23f; /* adding it leaves an integer in the low bits */

    x = vmin(vset1(89), vmax(vset1(-104), x));
    vf t = x * 1.44269504f + round, n = t - round;
    vf r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* 2^n in two factors: n may be -150, where the result is a denormal, or 128, where it is
     * infinite. */
    vi whole = (vi)t - (vi)vset1(round), half = whole >> 1;
    vf scale = (vf)((half + 127) << 23), rest = (vf)((whole - half + 127) << 23);
    return p * scale * rest;
}

static ALWAYS_INLINE vf vsigmoid(vf x)
{
    return 1.0f / (1.0f + vexp(-x));
}

static ALWAYS_INLINE vf vtanh(vf x)
{
    vf z = x * x, p = z * -5.70498872745e-3f + 2.06390887954e-2f; /* Cephes, |x| < 0.625 */
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    vf small = p * z * x + x, large = 1.0f - 2.0f / (vexp(2 * vabs(x)) + 1.0f);
    return vpick(vabs(x) < 0.625f, small, vsign_of(large, x));
}

/* log(1 + e) of e in [0, 1]: 2 atanh(e / (2 + e)) by its series. */
static ALWAYS_INLINE vf vlog1p(vf e)
{
    vf s = e / (e + 2.0f), z = s * s, p = z * (1 / 15.0f) + 1 / 13.0f;
    p = p * z + 1 / 11.0f;
    p = p * z + 1 / 9.0f;
    p = p * z + 1 / 7.0f;
    p = p * z + 1 / 5.0f;
    p = p * z + 1 / 3.0f;
    return 2 * s * (p * z + 1.0f);
}

/* Of numbers from 1 on; infinity and what is not a number become the latter. x = 2^n m with m from
 * 3/4 to 3/2, and log m = 2 atanh((m - 1) / (m + 1)), as above. */
static ALWAYS_INLINE vf vlog(vf x)
{
    vi n = ((vi)x - 0x3f400000) >> 23;
    vf m = (vf)((vi)x - (n << 23)), whole = __builtin_convertvector(n, vf);
    vf s = (m - 1.0f) / (m + 1.0f), z = s * s, p = z * (1 / 11.0f) + 1 / 9.0f;
    p = p * z + 1 / 7.0f;
    p = p * z + 1 / 5.0f;
    p = p * z + 1 / 3.0f;
    return 2 * s * (p * z + 1.0f) + whole * -2.12194440e-4f + whole * 0.693359375f + (x - x);
}

/* The distribution function of a normal variable, (1 + erf(x / sqrt 2)) / 2, within 2e-7, and its
 * density. Abramowitz and Stegun 7.1.26, used on the side where nothing cancels. */
static ALWAYS_INLINE vf vnormal(vf x, vf *density)
{
    vf bell = vexp(x * x * -0.5f), t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * vabs(x));
    vf p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vf tail = 0.5f * p * t * bell;
    *density = bell * 0.39894228f;
    return vpick(x < 0, tail, 1.0f - tail);
}

/* s becomes e to the power of (s - the largest of it) * scale; gives the largest, and the sum of
 * what s has become. */
static inline float vexp_row(float *s, int n, float scale, float *total)
{
    vf most = vset1(-INFINITY), sum = vzero();
    float high = -INFINITY;

    for (int j = 0; j < n; j += VW) {
        int take = vtake(j, n);
        most = vmax(vpick(vfirst(take), vload_n(s + j, take), most), most);
    }
    for (int k = 0; k < VW; k++) high = most[k] > high ? most[k] : high;
    for (int j = 0; j < n; j += VW) {
        int take = vtake(j, n);
        vf e = vpick(vfirst(take), vexp((vload_n(s + j, take) - high) * scale), vzero());
        sum += e;
        vstore_n(s + j, e, take);
    }
    *total = vsum(sum);
    return high;
}

#endif
