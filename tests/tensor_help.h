/* tensor_help: arrays of random numbers in any layout, and comparing them. Only tests include it.
 */
#ifndef TT_TEST_TENSOR_HELP_H
#define TT_TEST_TENSOR_HELP_H

#include "tensor/tensor.h"
#include "test.h"

/* ---- Memory: blocks of their exact size, so that a sanitizer sees a step too far ---- */

enum { HELP_MOST = 4096 };
static void *help_block[HELP_MOST];
static int help_count;

static inline void *help_bytes(size_t bytes)
{
    void *p = NULL;

    if (help_count == HELP_MOST || posix_memalign(&p, 64, bytes ? bytes : 1)) FAIL("no memory");
    memset(p, 0, bytes);
    return help_block[help_count++] = p;
}

/* NaN in any type: what is read before it is written is seen. */
static inline void *help_unwritten(size_t bytes)
{
    return memset(help_bytes(bytes), 0xff, bytes);
}

static inline float *help_floats(int64_t n)
{
    return help_bytes((size_t)n * sizeof(float));
}

static inline void help_free(void)
{
    while (help_count) free(help_block[--help_count]);
}

/* ---- Numbers ---- */

static uint64_t help_counter;

static inline double help_uniform(void) /* [0, 1) */
{
    return (double)tt_philox(42, 0, help_counter++).v[0] * 0x1p-32;
}

static inline int help_int(int from, int to)
{
    return from + (int)(help_uniform() * (to - from + 1));
}
static inline bool help_coin(void)
{
    return help_uniform() < 0.5;
}

static inline float *help_random(int64_t n)
{
    float *x = help_floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(2 * help_uniform() - 1);
    return x;
}

static inline float *help_copy(const float *x, int64_t n)
{
    float *y = help_floats(n);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static inline void help_near(const char *file, int line, const char *what, const float *want,
                             const float *got, int64_t n, double tol)
{
    for (int64_t i = 0; i < n; i++) {
        if (isnan(want[i]) && isnan(got[i])) continue;
        if (want[i] == got[i]) continue;
        if (fabs((double)want[i] - got[i]) <= tol * (1 + fabs(want[i]))) continue;
        tt_test_fail(file, line, "%s[%lld]: got %.9g, wanted %.9g", what, (long long)i, got[i],
                     want[i]);
        tt_test_stop();
    }
}
#define EXPECT_ALL_NEAR(want, got, n, tol) help_near(__FILE__, __LINE__, #got, want, got, n, tol)

/* ---- Layouts, by the definition in tensor.h ---- */

typedef struct help_form {
    tt_layout layout;
    int lanes, n;
    int64_t c, hw;
} help_form;

static inline int64_t help_slices(help_form f)
{
    return (f.n + f.lanes - 1) / f.lanes;
}

static inline int64_t help_size(help_form f)
{
    return (f.layout == TT_LANES ? help_slices(f) * f.lanes : f.n) * f.c * f.hw;
}

static inline int64_t help_at(help_form f, int n, int64_t c, int64_t p)
{
    switch (f.layout) {
    case TT_PLAIN:
        return (n * f.c + c) * f.hw + p;
    case TT_NHWC:
        return (n * f.hw + p) * f.c + c;
    default:
        return ((n / f.lanes * f.c + c) * f.hw + p) * f.lanes + n % f.lanes;
    }
}

/* PLAIN into the layout; padded lanes get `pad`. */
static inline float *help_into(help_form f, const float *x, float pad)
{
    float *y = help_floats(help_size(f));

    for (int64_t i = 0; i < help_size(f); i++) y[i] = pad;
    for (int n = 0; n < f.n; n++)
        for (int64_t c = 0; c < f.c; c++)
            for (int64_t p = 0; p < f.hw; p++) y[help_at(f, n, c, p)] = x[(n * f.c + c) * f.hw + p];
    return y;
}

static inline float *help_plain(help_form f, const float *y)
{
    float *x = help_floats(f.n * f.c * f.hw);

    for (int n = 0; n < f.n; n++)
        for (int64_t c = 0; c < f.c; c++)
            for (int64_t p = 0; p < f.hw; p++) x[(n * f.c + c) * f.hw + p] = y[help_at(f, n, c, p)];
    return x;
}

/* Whether all padded lanes hold `pad`. */
static inline bool help_padded(help_form f, const float *y, float pad)
{
    if (f.layout != TT_LANES) return true;
    for (int64_t n = f.n; n < help_slices(f) * f.lanes; n++)
        for (int64_t e = 0; e < f.c * f.hw; e++)
            if (y[help_at(f, (int)n, e / f.hw, e % f.hw)] != pad) return false;
    return true;
}

/* ---- Tables: every one but ref that runs here, in every layout ---- */

static inline const tt_kernels *help_ref(void)
{
    const tt_kernels *k;
    EXPECT_OK(tt_kernels_find("ref", &k));
    return k;
}

#define EACH_FAST(k)                                                                               \
    const tt_kernels *const *all_, *k;                                                             \
    int count_ = tt_kernels_all(&all_);                                                            \
    for (int i_ = 0; i_ < count_ && (k = all_[i_]); i_++)                                          \
        if (k->lanes)

#define EACH_LAYOUT(l) for (tt_layout l = TT_PLAIN; l <= TT_LANES; l++)

#endif
