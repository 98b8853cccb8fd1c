/* simd: one vector of floats, as wide as the instruction set this file is compiled for (TT_ISA).
 *
 * Everything here is GCC's vector extension, which lowers to any width, so that the 16-wide kernels can be
 * tested on CPUs without AVX-512. Intrinsics stand only where the compiler does not see the instruction. */
#ifndef TT_SIMD_H
#define TT_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tensor/tensor.h"

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VW = 16, VREGS = 32 };
#elif defined(__AVX2__)
#include <immintrin.h>
enum { VW = 8, VREGS = 16 };
#else
enum { VW = 4, VREGS = 16 };
#endif

typedef float vf __attribute__((vector_size(VW * 4), aligned(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4), aligned(VW * 4)));
typedef float vf_u __attribute__((vector_size(VW * 4), aligned(4), may_alias)); /* at any address */

/* Names of one instruction set: TT_SIMD(conv_forward) is tt_conv_forward_avx2. */
#define TT_SIMD2(name, isa) tt_##name##_##isa
#define TT_SIMD1(name, isa) TT_SIMD2(name, isa)
#define TT_SIMD(name) TT_SIMD1(name, TT_ISA)

static inline vf vload(const float *p) { return *(const vf_u *)p; }
static inline void vstore(float *p, vf x) { *(vf_u *)p = x; }
static inline vf vset1(float x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (vf)_mm256_set1_ps(x);
#else
    return (vf){x, x, x, x};
#endif
}
static inline vf vzero(void) { return (vf){0}; }

/* m is all ones or all zeros per element, as comparisons give. */
static inline vf vpick(vi m, vf yes, vf no) { return (vf)(((vi)yes & m) | ((vi)no & ~m)); }
static inline vf vmax(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vpick(a > b, a, b);
#endif
}
static inline vf vmin(vf a, vf b) { return -vmax(-a, -b); }
static inline float vsum(vf x)
{
    /* Pairwise, in the same order for every width's halves: halve until one is left. */
    float t[VW];
    vstore(t, x);
    for (int w = VW / 2; w; w /= 2)
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}

/* The first n (< VW) elements; the rest reads as 0 and is not written. */
static inline vf vload_part(const float *p, int n)
{
    float t[VW] = {0};
    memcpy(t, p, (size_t)n * sizeof *t);
    return vload(t);
}
static inline void vstore_part(float *p, vf x, int n)
{
    float t[VW];
    vstore(t, x);
    memcpy(p, t, (size_t)n * sizeof *t);
}

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL(n) _Pragma(TT_STR1(GCC unroll n))
#define TT_STR1(x) #x

#endif
