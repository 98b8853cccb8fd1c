/* simd: one vector of floats, as wide as the instruction set this file is compiled for (TT_ISA).
 *
 * Everything here is GCC's vector extension, which lowers to any width, so that the 16-wide kernels
 * can be tested on CPUs without AVX-512. Intrinsics stand only where the compiler does not see the
 * instruction. */
#ifndef TT_SIMD_H
#define TT_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tensor/tensor.h"

/* With TT_WIDE the table of AVX-512 is 16-wide code made of AVX2 instructions, for those tests:
 *     make unit M=tensor B=build-wide WIDE=1
 * So intrinsics of 8 or 16 floats stand under TT_256 and TT_512, never under the
 * compiler's own macros. */
#if defined(TT_WIDE)
#define TT_WIDE_avx512      1
#define TT_WIDE_avx512_bf16 1
#define TT_WIDE2(isa)       TT_WIDE_##isa
#define TT_WIDE1(isa)       TT_WIDE2(isa)
#define TT_IS_WIDE          TT_WIDE1(TT_ISA)
#else
#define TT_IS_WIDE 0
#endif

#if TT_IS_WIDE
enum { VW = 16, VREGS = 16 };
#elif defined(__AVX512F__)
#define TT_512
#include <immintrin.h>
enum { VW = 16, VREGS = 32 };
#elif defined(__AVX2__)
#define TT_256
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
#define TT_SIMD(name)       TT_SIMD1(name, TT_ISA)

/* And of one way of multiplying matrices, of which an instruction set may have several. */
#ifndef TT_PRODUCT
#define TT_PRODUCT TT_ISA
#endif
#define TT_PROD(name) TT_SIMD1(name, TT_PRODUCT)

static inline vf vload(const float *p)
{
    return *(const vf_u *)p;
}
static inline void vstore(float *p, vf x)
{
    *(vf_u *)p = x;
}
static inline vf vset1(float x)
{
#if defined(TT_512)
    return (vf)_mm512_set1_ps(x);
#elif defined(TT_256)
    return (vf)_mm256_set1_ps(x);
#else
    return x - (vf){0}; /* -0 too */
#endif
}
static inline vf vzero(void)
{
    return (vf){0};
}

/* m is all ones or all zeros per element, as comparisons give. */
static inline vf vpick(vi m, vf yes, vf no)
{
    return (vf)(((vi)yes & m) | ((vi)no & ~m));
}
static inline vf vmax(vf a, vf b)
{
#if defined(TT_512)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(TT_256)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vpick(a > b, a, b);
#endif
}
static inline vf vmin(vf a, vf b)
{
    return -vmax(-a, -b);
}
static inline float vsum(vf x)
{
    /* Pairwise, in the same order for every width's halves: halve until one is left. */
    vi at;
    for (int i = 0; i < VW; i++) at[i] = i;
    for (int w = VW / 2; w; w /= 2) x += __builtin_shuffle(x, at ^ w);
    return x[0];
}

/* The first n (0 .. VW) elements; the rest reads as 0 and is not written. */
#if defined(TT_512)
static inline vf vload_part(const float *p, int n)
{
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline void vstore_part(float *p, vf x, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
}
#elif defined(TT_256)
static inline __m256i vpart(int n)
{
    static const int32_t ones[2 * VW] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(ones + VW - n));
}
static inline vf vload_part(const float *p, int n)
{
    return (vf)_mm256_maskload_ps(p, vpart(n));
}
static inline void vstore_part(float *p, vf x, int n)
{
    _mm256_maskstore_ps(p, vpart(n), (__m256)x);
}
#else
static inline vf vload_part(const float *p, int n)
{
    vf x = vzero();
    for (int i = 0; i < n; i++) x[i] = p[i];
    return x;
}
static inline void vstore_part(float *p, vf x, int n)
{
    for (int i = 0; i < n; i++) p[i] = x[i];
}
#endif

/* The same where n is mostly VW: a branch that is nearly always taken, instead of a mask. */
static inline vf vload_n(const float *p, int n)
{
    return n == VW ? vload(p) : vload_part(p, n);
}
static inline void vstore_n(float *p, vf x, int n)
{
    if (n == VW)
        vstore(p, x);
    else
        vstore_part(p, x, n);
}

/* x plus, or instead of, what is at p. */
static inline void vput_n(float *p, vf x, int n, bool add)
{
    vstore_n(p, add ? vload_n(p, n) + x : x, n);
}

#ifdef TT_ACT_BF16
#include "tensor/simd/bf16.h"
#else
static inline float act_get(float x)
{
    return x;
}
static inline float act_of(float x)
{
    return x;
}
#endif
static inline void act_put(tt_act *p, float x, bool add)
{
    *p = act_of(add ? act_get(*p) + x : x);
}

/* How many of the elements from i to n one vector takes, and the mask of the first n. */
static inline int vtake(int64_t i, int64_t n)
{
    return n - i < VW ? (int)(n - i) : VW;
}
static inline vi vfirst(int n)
{
    vi at;
    for (int i = 0; i < VW; i++) at[i] = i;
    return at < n;
}

static inline vf vrelu(vf x)
{
    return vmax(vzero(), x);
} /* not a number stays so */

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL(n)     _Pragma(TT_STR1(GCC unroll n))
#define TT_STR1(x)    #x

#endif
