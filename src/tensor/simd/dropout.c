/* Dropout. Philox for VW counters at a time; the bits are those of tt_philox, so every layout and every
 * table drops the same elements. Element e of a sample takes word e % 4 of block e / 4. */
#include "tensor/simd/table.h"

typedef uint32_t vu __attribute__((vector_size(VW * 4), aligned(VW * 4)));
typedef uint64_t vd __attribute__((vector_size(VW * 4), aligned(VW * 4)));

/* Products of the even elements' 32 bits: 64 bits each. */
static ALWAYS_INLINE vd mul_even(vu a, uint32_t m)
{
#if defined(TT_512)
    return (vd)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
#elif defined(TT_256)
    return (vd)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
#else
    return ((vd)a & 0xffffffffu) * m;
#endif
}

static ALWAYS_INLINE void mul_wide(vu a, uint32_t m, vu *high, vu *low)
{
    vd even = mul_even(a, m), odd = mul_even((vu)((vd)a >> 32), m);

    *high = (vu)(even >> 32 | (odd & 0xffffffff00000000u));
    *low = (vu)((even & 0xffffffffu) | odd << 32);
}

/* Four words for each of VW counters (hi 0, lo c1:c0), in place. */
static ALWAYS_INLINE void philox(vu k0, vu k1, vu c[4])
{
    for (int i = 0; i < 10; i++) {
        vu high0, low0, high1, low1;
        mul_wide(c[0], 0xD2511F53u, &high0, &low0);
        mul_wide(c[2], 0xCD9E8D57u, &high1, &low1);
        c[0] = high1 ^ c[1] ^ k0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
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

static ALWAYS_INLINE vi kept(vu word, vi threshold) { return (vi)(word >> 8) >= threshold; }

static ALWAYS_INLINE vu counters(uint64_t first)
{
    vu c;
    for (int i = 0; i < VW; i++) c[i] = (uint32_t)(first + (uint64_t)i);
    return c;
}

/* ---- PLAIN, NHWC: the masks of TILE neighbouring elements of one sample, then the elements ---- */

enum { TILE = 4096 }; /* a multiple of 4 * VW */

/* Masks for elements `first` (a multiple of 4) and on, at least n of them. */
static void tile_masks(uint64_t key, int64_t first, int64_t n, vi threshold, int32_t *mask)
{
    vu k0 = (uint32_t)key - (vu){0}, k1 = (uint32_t)(key >> 32) - (vu){0};

    for (int64_t at = 0; at < n; at += 4 * VW) {
        uint64_t block = (uint64_t)(first + at) / 4;
        vu c[4] = {counters(block), {0}, {0}, {0}};
        /* Where the low half overflows inside the vector the high one follows. */
        c[1] = (vu)(c[0] < (uint32_t)block) & 1;
        c[1] += (uint32_t)(block >> 32);
        philox(k0, k1, c);
        for (int k = 0; k < 4; k++) {
            vi m = kept(c[k], threshold);
            for (int i = 0; i < VW; i++) mask[at + 4 * i + k] = m[i];
        }
    }
}

static ALWAYS_INLINE float dropped(float x, int32_t mask, float scale)
{
    return mask ? x * scale : 0;
}

/* Elements first .. first + n of a sample lie side by side. */
static void apply_plain(const tt_drop_args *a, int64_t at, int64_t n, const int32_t *mask,
                        float scale)
{
    for (int64_t i = 0; i < n; i += VW) {
        int k = vtake(i, n);
        vi m = *(const vi *)(mask + i);
        vf v = (vf)((vi)(vload_n(a->x + at + i, k) * scale) & m);
        vput_n(a->y + at + i, v, k, a->add);
    }
}

/* Element e is channel e / hw of pixel e % hw. */
static void apply_nhwc(const tt_drop_args *a, int64_t sample, int64_t first, int64_t n,
                       const int32_t *mask, float scale)
{
    int64_t pixel = first % a->hw, at = sample + pixel * a->c + first / a->hw;

    for (int64_t i = 0; i < n; i++) {
        float v = dropped(a->x[at], mask[i], scale);
        a->y[at] = a->add ? a->y[at] + v : v;
        at += a->c;
        if (++pixel == a->hw) pixel = 0, at += 1 - a->hw * a->c;
    }
}

static void samples(const tt_drop_args *a, vi threshold, float scale)
{
    int64_t per = a->c * a->hw;
    int32_t mask[TILE] __attribute__((aligned(64)));
    bool plain = a->layout == TT_PLAIN || a->hw == 1 || a->c == 1;

    for (int n = 0; n < a->n; n++) {
        uint64_t key = sample_key(a, n);
        for (int64_t e = 0; e < per; e += TILE) {
            int64_t count = per - e < TILE ? per - e : TILE;
            tile_masks(key, e, count, threshold, mask);
            if (plain) apply_plain(a, n * per + e, count, mask, scale);
            else apply_nhwc(a, n * per, e, count, mask, scale);
        }
    }
}

/* ---- LANES: every lane has its key, all have the same counter ---- */

static void slice(const tt_drop_args *a, int first, vi threshold, float scale)
{
    int64_t per = a->c * a->hw, at = (int64_t)first * per;
    vu k0 = {0}, k1 = {0};

    for (int i = 0; i < VW && first + i < a->n; i++) {
        uint64_t key = sample_key(a, first + i);
        k0[i] = (uint32_t)key;
        k1[i] = (uint32_t)(key >> 32);
    }
    for (int64_t e = 0; e < per; e += 4) {
        uint64_t block = (uint64_t)e / 4;
        vu c[4] = {(uint32_t)block - (vu){0}, (uint32_t)(block >> 32) - (vu){0}, {0}, {0}};
        philox(k0, k1, c);
        for (int k = 0; k < 4 && e + k < per; k++) {
            float *y = a->y + at + (e + k) * VW;
            vf v = vload(a->x + at + (e + k) * VW) * scale;
            vput_n(y, (vf)((vi)v & kept(c[k], threshold)), VW, a->add);
        }
    }
}

void TT_SIMD(dropout)(const tt_drop_args *a)
{
    vi threshold = threshold_of(a->p);
    float scale = a->p < 1 ? 1 / (1 - a->p) : 0;

    if (a->layout != TT_LANES) samples(a, threshold, scale);
    else
        for (int first = 0; first < a->n; first += VW) slice(a, first, threshold, scale);
}
