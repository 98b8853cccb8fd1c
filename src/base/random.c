#include "random.h"

#include <math.h>
#include <string.h>

#include "err.h"

/* ---- Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3") ---- */

tt_u128 tt_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);

    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (tt_u128){{c0, c1, c2, c3}};
}

void tt_uniform4(uint64_t key, uint64_t hi, uint64_t lo, float out[4])
{
    tt_u128 r = tt_philox(key, hi, lo);

    for (int i = 0; i < 4; i++) out[i] = (float)(r.v[i] >> 8) * 0x1p-24f;
}

/* ---- normals: Box and Muller ---- */

/* ln of x in (0, 1], by the series of atanh: x = m * 2^e with m near 1, s = (m-1) / (m+1). */
static double log_of(double x)
{
    int e;
    double m = frexp(x, &e), s, z, sum = 0;

    if (m < 0.70710678118654752440) m *= 2, e--;
    s = (m - 1) / (m + 1); /* |s| < 0.1716 */
    z = s * s;
    for (int k = 21; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
    return 2 * s * sum + e * 0.69314718055994530942;
}

/* Sine and cosine of 2 pi turn, turn in [0, 1): Taylor in the nearest quarter, |x| <= pi/4. */
static void sin_cos_of(double turn, double *sine, double *cosine)
{
    int quarter = (int)(turn * 4 + 0.5);
    double x = (turn - quarter * 0.25) * 6.28318530717958647693, z = x * x;
    double s = 1, c = 1;

    for (int k = 14; k >= 2; k -= 2) {
        s = 1 - s * z / (k * (k + 1));
        c = 1 - c * z / (k * (k - 1));
    }
    s *= x;
    switch (quarter & 3) {
    case 0:
        *sine = s, *cosine = c;
        break;
    case 1:
        *sine = c, *cosine = -s;
        break;
    case 2:
        *sine = -s, *cosine = -c;
        break;
    default:
        *sine = -c, *cosine = s;
        break;
    }
}

void tt_normal4(uint64_t key, uint64_t hi, uint64_t lo, float out[4])
{
    tt_u128 r = tt_philox(key, hi, lo);

    for (int i = 0; i < 4; i += 2) {
        /* (0, 1], so that the logarithm is finite; 32 bits reach 6.66 standard deviations. */
        double radius = sqrt(-2 * log_of(((double)r.v[i] + 1) * 0x1p-32)), s, c;
        sin_cos_of((double)r.v[i + 1] * 0x1p-32, &s, &c);
        out[i] = (float)(radius * c);
        out[i + 1] = (float)(radius * s);
    }
}

/* ---- keys ---- */

uint64_t tt_random_key(uint64_t seed, const char *name)
{
    /* Philox as a hash: each block of eight bytes is the counter under the key so far. The length
     * closes it, so that a name and the same name padded differ. */
    size_t size = strlen(name), at = 0;
    uint64_t key = seed;
    tt_u128 r;

    for (; at <= size; at += 8) {
        uint64_t block = 0;
        for (size_t i = 0; i < 8 && at + i < size; i++)
            block |= (uint64_t)(unsigned char)name[at + i] << (8 * i);
        r = tt_philox(key, at + 8 > size ? ~(uint64_t)size : at, block);
        key = (uint64_t)r.v[1] << 32 | r.v[0];
    }
    return key;
}

/* ---- permutations ---- */

/* The finaliser of SplitMix64: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t tt_permute(uint64_t key, uint64_t n, uint64_t i)
{
    /* At least 64 places: with fewer, a Feistel network reaches too few permutations. */
    int half = 3;
    uint64_t mask;

    TT_ASSERT(i < n);
    while (half < 32 && (n - 1) >> (2 * half)) half++;
    mask = ((uint64_t)1 << half) - 1;
    do { /* a place outside 0 .. n-1 is walked on from: at most 4 rounds on average, or 64/n */
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 1; round <= 6; round++) {
            uint64_t f = mix(mix(key + round * 0x9E3779B97F4A7C15u) ^ right) & mask;
            uint64_t next = left ^ f;
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

uint64_t tt_mix(uint64_t x) /* splitmix64 */
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
