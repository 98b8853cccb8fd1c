/* Dropout. Philox for VW counters at a time; the bits are those of tt_philox, so every layout and
 * every table drops the same elements. Element e of a sample takes word e % 4 of block e / 4. */
#include "tensor/simd/table.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef uint32_t vu __attribute__((vector_size(VW * 4), aligned(VW * 4)));
typedef uint64_t vd __attribute__((vector_size(VW * 4), aligned(VW * 4)));

/* Products of the lower halves. */
static ALWAYS_INLINE vd mul_low(vd a, uint32_t m)
{
#if defined(TT_512)
    return (vd)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
#elif defined(TT_256)
    return (vd)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
#elif defined(__SSE2__) && !TT_IS_WIDE
    return (vd)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(m));
#else
    return (a & 0xffffffffu) * m;
#endif
}

/* The four words of each of VW counters (0, c1:c0), in place. Even and odd ones go apart, each word
 * in the lower half of 64 bits, where products need it; what gathers in the upper half plays no
 * part. */
static ALWAYS_INLINE void philox(vu k0, vu k1, vu c[4])
{
    vd key0[2] = {(vd)k0, (vd)k0 >> 32}, key1[2] = {(vd)k1, (vd)k1 >> 32};
    vd w[4][2];

    for (int i = 0; i < 4; i++) w[i][0] = (vd)c[i], w[i][1] = (vd)c[i] >> 32;
    for (int round = 0; round < 10; round++)
        for (int h = 0; h < 2; h++) {
            vd p0 = mul_low(w[0][h], 0xD2511F53u), p1 = mul_low(w[2][h], 0xCD9E8D57u);
            w[0][h] = p1 >> 32 ^ w[1][h] ^ key0[h];
            w[1][h] = p1;
            w[2][h] = p0 >> 32 ^ w[3][h] ^ key1[h];
            w[3][h] = p0;
            key0[h] += 0x9E3779B9u;
            key1[h] += 0xBB67AE85u;
        }
    for (int i = 0; i < 4; i++) c[i] = (vu)((w[i][0] & 0xffffffffu) | w[i][1] << 32);
}

/* A sample's own key. */
static uint64_t sample_key(const tt_drop_args *a, int n)
{
    tt_u128 r = tt_philox(a->key, a->place[2 * n], a->place[2 * n + 1]);
    return (uint64_t)r.v[1] << 32 | r.v[0];
}

/* A word's 24 high bits are the uniform number u of tt_uniform4, times 2^24; u >= p is kept. */
static vi threshold_of(float p)
{
    int32_t t = p >= 1 ? 1 << 24 : p > 0 ? (int32_t)ceilf(p * 0x1p24f) : 0;
    return t - (vi){0};
}

static ALWAYS_INLINE vi kept(vu word, vi threshold)
{
    return (vi)(word >> 8) >= threshold;
}

/* Masks of the four elements that each of VW counters stands for. */
static ALWAYS_INLINE void masks(vu k0, vu k1, vd even, vd odd, vi threshold, vi out[4])
{
    vu c[4] = {(vu)((even & 0xffffffffu) | odd << 32),
               (vu)(even >> 32 | (odd & 0xffffffff00000000u))};

    philox(k0, k1, c);
    for (int k = 0; k < 4; k++) out[k] = kept(c[k], threshold);
}

/* 0, step, 2 step, ... */
static ALWAYS_INLINE vd count_by(uint64_t step)
{
    uint64_t t[VW / 2];
    vd v;

    for (int i = 0; i < VW / 2; i++) t[i] = (uint64_t)i * step;
    memcpy(&v, t, sizeof v);
    return v;
}

static ALWAYS_INLINE vu all32(uint64_t x)
{
    return (uint32_t)x - (vu){0};
}

static ALWAYS_INLINE void apply(const tt_drop_args *a, int64_t at, int n, vi mask, float scale)
{
    vf v = vload_n(a->x + at, n) * scale;
    vput_n(a->y + at, (vf)((vi)v & mask), n, a->add);
}

/* ---- PLAIN: counters side by side, whose words are then brought in order ---- */

static ALWAYS_INLINE void zip(vi a, vi b, vi *low, vi *high)
{
    vi first, second;

    for (int i = 0; i < VW; i++) {
        first[i] = i / 2 + i % 2 * VW;
        second[i] = VW / 2 + i / 2 + i % 2 * VW;
    }
    *low = __builtin_shuffle(a, b, first);
    *high = __builtin_shuffle(a, b, second);
}

/* Masks of the 4 * VW elements that begin with block `block`. */
static ALWAYS_INLINE void row_masks(uint64_t key, uint64_t block, vi threshold, vi out[4])
{
    vd even = count_by(2) + block;
    vi m[4], low[2], high[2];

    masks(all32(key), all32(key >> 32), even, even + 1, threshold, m);
    zip(m[0], m[2], &low[0], &high[0]);
    zip(m[1], m[3], &low[1], &high[1]);
    zip(low[0], low[1], &out[0], &out[1]);
    zip(high[0], high[1], &out[2], &out[3]);
}

static void plain_sample(const tt_drop_args *a, int n, vi threshold, float scale)
{
    int64_t per = a->c * a->hw;
    uint64_t key = sample_key(a, n);
    vi m[4];

    for (int64_t e = 0; e < per; e += 4 * VW) {
        row_masks(key, (uint64_t)e / 4, threshold, m);
        for (int k = 0; k < 4 && e + k * VW < per; k++)
            apply(a, n * per + e + k * VW, vtake(e + k * VW, per), m[k], scale);
    }
}

/* ---- NHWC: a vector of channels has one counter each, for four pixels, if pixels are whole fours
 * ---- */

static void nhwc_sample(const tt_drop_args *a, int n, vi threshold, float scale)
{
    uint64_t key = sample_key(a, n);
    uint64_t blocks = (uint64_t)a->hw / 4; /* of one channel */
    vd channels = count_by(2 * blocks);
    vi m[4];

    for (uint64_t b = 0; b < blocks; b++)
        for (int64_t c = 0; c < a->c; c += VW) {
            vd even = channels + ((uint64_t)c * blocks + b);
            int64_t at = (n * a->hw + 4 * (int64_t)b) * a->c + c;
            masks(all32(key), all32(key >> 32), even, even + blocks, threshold, m);
            for (int k = 0; k < 4; k++) apply(a, at + k * a->c, vtake(c, a->c), m[k], scale);
        }
}

/* Otherwise the masks are made in the order of PLAIN. Element e is channel e / hw of pixel e % hw.
 */
static void nhwc_sample_any(const tt_drop_args *a, int n, vi threshold, float scale)
{
    int64_t per = a->c * a->hw, pixel = 0, channel = 0;
    uint64_t key = sample_key(a, n);
    vi m[4];

    for (int64_t e = 0; e < per; e += 4 * VW) {
        row_masks(key, (uint64_t)e / 4, threshold, m);
        for (int k = 0; k < 4 * VW && e + k < per; k++) {
            int64_t at = (n * a->hw + pixel) * a->c + channel;
            act_put(a->y + at, m[k / VW][k % VW] ? act_get(a->x[at]) * scale : 0, a->add);
            if (++pixel == a->hw) pixel = 0, channel++;
        }
    }
}

/* ---- LANES: every lane has its key, all have the same counter ---- */

static void lanes_slice(const tt_drop_args *a, int first, vi threshold, float scale)
{
    int64_t per = a->c * a->hw, at = (int64_t)first * per;
    vu k0 = {0}, k1 = {0};
    vi m[4];

    for (int i = 0; i < VW && first + i < a->n; i++) {
        uint64_t key = sample_key(a, first + i);
        k0[i] = (uint32_t)key;
        k1[i] = (uint32_t)(key >> 32);
    }
    for (int64_t e = 0; e < per; e += 4) {
        vd block = (uint64_t)e / 4 - (vd){0};
        masks(k0, k1, block, block, threshold, m);
        for (int k = 0; k < 4 && e + k < per; k++) apply(a, at + (e + k) * VW, VW, m[k], scale);
    }
}

void TT_SIMD(dropout)(const tt_drop_args *a)
{
    vi threshold = threshold_of(a->p);
    float scale = a->p < 1 ? 1 / (1 - a->p) : 0;

    if (a->layout == TT_LANES) {
        for (int n = 0; n < a->n; n += VW) lanes_slice(a, n, threshold, scale);
        return;
    }
    for (int n = 0; n < a->n; n++) {
        if (a->layout == TT_PLAIN || a->hw == 1 || a->c == 1)
            plain_sample(a, n, threshold, scale);
        else if (a->hw % 4 == 0)
            nhwc_sample(a, n, threshold, scale);
        else
            nhwc_sample_any(a, n, threshold, scale);
    }
}
