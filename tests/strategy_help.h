/* Helpers of the tests of compressed gradients: memory, numbers of every kind, instruction sets. */
#ifndef STRATEGY_HELP_H
#define STRATEGY_HELP_H

#include "test.h"

/* Beside "any"; this CPU may not have them. */
static const char *const isas[] = {"avx2", "avx512"};

/* Exactly as large as asked for, so that the sanitizer sees every step over the edge; all of them
 * go with clean(). */
static void *taken[1024];
static int taken_count;

static inline void *block(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);

    EXPECT(p && taken_count < TT_COUNT(taken));
    memset(p, 0xa5, bytes);
    return taken[taken_count++] = p;
}
static inline void clean(void)
{
    while (taken_count) free(taken[--taken_count]);
}
static inline float *floats(int64_t n)
{
    return block((size_t)n * sizeof(float));
}
static inline float *zeros(int64_t n)
{
    float *x = floats(n);
    memset(x, 0, sizeof *x * (size_t)n);
    return x;
}
static inline float *normals(uint64_t key, int64_t n, float scale)
{
    float *x = floats(n), r[4];

    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) tt_normal4(key, 0, (uint64_t)i, r);
        x[i] = scale * r[i % 4];
    }
    return x;
}

static inline bool same_bits(const void *a, const void *b, size_t bytes)
{
    return bytes == 0 || !memcmp(a, b, bytes);
}

/* All kinds of numbers, without those that are not finite unless asked for. */
static inline float *mixture(int64_t n, bool wild)
{
    float *x = normals(21, n, 1);

    for (int64_t i = 0; i < n; i++) {
        tt_u128 r = tt_philox(22, 0, (uint64_t)i);
        if (r.v[0] % 5 == 0) x[i] = 0;
        if (r.v[0] % 7 == 0) x[i] *= exp2f((float)(r.v[1] % 60) - 50);
        if (r.v[0] % 701 == 0) x[i] *= 0x1p-130f;
        if (r.v[0] % 11 == 0) x[i] = -0.5f;
        if (wild && r.v[0] % 5003 == 0) x[i] = r.v[1] % 2 ? NAN : -INFINITY;
    }
    return x;
}

#endif
