/* bf16: vectors of activations that are stored as the upper halves of floats; a part of simd.h.
 *
 * The loads and stores of floats take both kinds of pointers here, so that a kernel's source says
 * vload, whatever its activations are. */
#ifndef TT_SIMD_BF16_H
#define TT_SIMD_BF16_H

static inline float act_get(tt_bf16 x)
{
    return tt_bf16_get(x);
}
static inline tt_bf16 act_of(float x)
{
    return tt_bf16_of(x);
}

typedef uint32_t vu32 __attribute__((vector_size(VW * 4), aligned(VW * 4)));

/* The upper halves, rounded, in the lower. */
static inline vu32 vhalves(vf x)
{
    vu32 bits = (vu32)x, up = bits >> 16, round = (bits + 0x7fff + (up & 1)) >> 16;
    vu32 none = (vu32)(x != x);
    return (round & ~none) | ((up | 0x40) & none);
}

#if defined(TT_512)
static inline vf vload_b(const tt_bf16 *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return (vf)_mm512_slli_epi32(x, 16);
}
/* The instruction takes denormals for zeros, as products of tiles and pairs do. */
static inline __m256i vcut(vf x)
{
#if defined(TT_512_BF16)
    return (__m256i)_mm512_cvtneps_pbh((__m512)x);
#else
    return _mm512_cvtepi32_epi16((__m512i)vhalves(x));
#endif
}
static inline void vstore_b(tt_bf16 *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, vcut(x));
}
static inline vf vload_part_b(const tt_bf16 *p, int n)
{
    __m256i x = _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
}
static inline void vstore_part_b(tt_bf16 *p, vf x, int n)
{
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), vcut(x));
}
#elif defined(TT_256)
static inline vf vload_b(const tt_bf16 *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return (vf)_mm256_slli_epi32(x, 16);
}
static inline void vstore_b(tt_bf16 *p, vf x)
{
    __m256i h = (__m256i)vhalves(x), both = _mm256_packus_epi32(h, h);
    __m256i whole = _mm256_permute4x64_epi64(both, 0x08); /* the first of each half */
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(whole));
}
#else
typedef uint16_t vu16 __attribute__((vector_size(VW * 2), aligned(2), may_alias));
static inline vf vload_b(const tt_bf16 *p)
{
    return (vf)(__builtin_convertvector(*(const vu16 *)p, vu32) << 16);
}
static inline void vstore_b(tt_bf16 *p, vf x)
{
    *(vu16 *)p = __builtin_convertvector(vhalves(x), vu16);
}
#endif
#if !defined(TT_512)
static inline vf vload_part_b(const tt_bf16 *p, int n)
{
    tt_bf16 part[VW] = {{0}};
    for (int i = 0; i < n; i++) part[i] = p[i];
    return vload_b(part);
}
static inline void vstore_part_b(tt_bf16 *p, vf x, int n)
{
    tt_bf16 part[VW];
    vstore_b(part, x);
    for (int i = 0; i < n; i++) p[i] = part[i];
}
#endif

static inline vf vload_n_b(const tt_bf16 *p, int n)
{
    return n == VW ? vload_b(p) : vload_part_b(p, n);
}
static inline void vstore_n_b(tt_bf16 *p, vf x, int n)
{
    if (n == VW)
        vstore_b(p, x);
    else
        vstore_part_b(p, x, n);
}
static inline void vput_n_b(tt_bf16 *p, vf x, int n, bool add)
{
    vstore_n_b(p, add ? vload_n_b(p, n) + x : x, n);
}

#define BOTH(fn, p)                                                                                \
    _Generic((p), const float * : fn, float * : fn, const tt_bf16 * : fn##_b, tt_bf16 * : fn##_b)
#define vload(p)             BOTH(vload, p)(p)
#define vstore(p, x)         BOTH(vstore, p)(p, x)
#define vload_part(p, n)     BOTH(vload_part, p)(p, n)
#define vstore_part(p, x, n) BOTH(vstore_part, p)(p, x, n)
#define vload_n(p, n)        BOTH(vload_n, p)(p, n)
#define vstore_n(p, x, n)    BOTH(vstore_n, p)(p, x, n)
#define vput_n(p, x, n, add) BOTH(vput_n, p)(p, x, n, add)

#endif
