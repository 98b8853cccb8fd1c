/* The loops stand as always-inlined bodies; the macro at the end makes a set of functions of them
 * for each instruction set. (gcc's target_clones would write that macro for us, but its resolvers
 * run before the sanitizers are ready and crash under them.)
 *
 * Old and new may be the same memory, so the pointers cannot be `restrict`; and the compiler's own
 * overlap check would send exactly that case to the slow loop. `ivdep` says what is true: iteration
 * i touches only elements i. */
#include "rules.h"

#include <math.h>

#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")

#define BODY static inline __attribute__((always_inline)) void
#define EACH _Pragma("GCC ivdep") for (int i = 0; i < n; i++)

double tt_sum_fold(const tt_sum *s)
{
    double t[TT_SUM_LANES];

    for (int i = 0; i < TT_SUM_LANES; i++) t[i] = s->lane[i];
    for (int half = TT_SUM_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}

/* ---- sums ---- */

BODY measure_body(const float *x, int n, tt_sum *sum)
{
    tt_sum t = *sum; /* a local copy, which the compiler knows not to overlap x */
    int i = 0;

    for (; i + TT_SUM_LANES <= n; i += TT_SUM_LANES)
        for (int k = 0; k < TT_SUM_LANES; k++) t.lane[k] += (double)x[i + k] * x[i + k];
    for (int k = 0; i + k < n; k++) t.lane[k] += (double)x[i + k] * x[i + k];
    *sum = t;
}

BODY prepare_body(float *to, const float *g, const float *w, int n, float share, float l2, float l1,
                  tt_sum *sum)
{
    if (l1 != 0) {
        EACH to[i] = g[i] * share + l2 * w[i] + l1 * (float)((w[i] > 0) - (w[i] < 0));
    } else if (l2 != 0) {
        EACH to[i] = g[i] * share + l2 * w[i];
    } else {
        EACH to[i] = g[i] * share;
    }
    measure_body(to, n, sum);
}

BODY clip_body(float *g, int n, float most, tt_sum *sum)
{
    EACH
    {
        float x = g[i];
        x = x > most ? most : x;
        g[i] = x < -most ? -most : x;
    }
    measure_body(g, n, sum);
}

/* ---- rules ---- */

/* Loads the names that all rules use. */
#define OPEN(c, f)                                                                                 \
    const int n = (c)->n;                                                                          \
    const float *g = (c)->g, *w = (c)->w_old;                                                      \
    float *w_new = (c)->w_new;                                                                     \
    const float scale = (f)->scale, lr = (f)->lr, shrink = (f)->shrink

BODY stat_body(const tt_chunk *c, float samples, float momentum)
{
    const int n = c->n;
    const float *g = c->g, *w = c->w_old;
    float *w_new = c->w_new, rest = 1 - momentum;

    EACH w_new[i] = rest * w[i] + momentum * (g[i] / samples);
}

BODY sgd_body(const tt_chunk *c, const tt_factors *f)
{
    OPEN(c, f);

    EACH w_new[i] = w[i] - (shrink * w[i] + lr * (g[i] * scale));
}

BODY momentum_body(const tt_chunk *c, const tt_factors *f)
{
    OPEN(c, f);
    const float *s = c->s_old[0];
    float *s_new = c->s_new[0];
    const float momentum = f->momentum, fresh = f->fresh;

    EACH
    {
        float b = momentum * s[i] + fresh * (g[i] * scale);
        s_new[i] = b;
        w_new[i] = w[i] - (shrink * w[i] + lr * b);
    }
}

BODY nesterov_body(const tt_chunk *c, const tt_factors *f)
{
    OPEN(c, f);
    const float *s = c->s_old[0];
    float *s_new = c->s_new[0];
    const float momentum = f->momentum;

    EACH
    {
        float x = g[i] * scale, b = momentum * s[i] + x;
        s_new[i] = b;
        w_new[i] = w[i] - (shrink * w[i] + lr * (x + momentum * b));
    }
}

BODY adagrad_body(const tt_chunk *c, const tt_factors *f)
{
    OPEN(c, f);
    const float *s = c->s_old[0];
    float *s_new = c->s_new[0];
    const float eps = f->eps;

    EACH
    {
        float x = g[i] * scale, b = s[i] + x * x;
        s_new[i] = b;
        w_new[i] = w[i] - (shrink * w[i] + lr * (x / (sqrtf(b) + eps)));
    }
}

BODY rmsprop_body(const tt_chunk *c, const tt_factors *f)
{
    OPEN(c, f);
    const float *s = c->s_old[0];
    float *s_new = c->s_new[0];
    const float alpha = f->beta[1], rest = f->rest[1], eps = f->eps;

    EACH
    {
        float x = g[i] * scale, b = alpha * s[i] + rest * (x * x);
        s_new[i] = b;
        w_new[i] = w[i] - (shrink * w[i] + lr * (x / (sqrtf(b) + eps)));
    }
}

BODY rmsprop_momentum_body(const tt_chunk *c, const tt_factors *f)
{
    OPEN(c, f);
    const float *s = c->s_old[0], *m = c->s_old[1];
    float *s_new = c->s_new[0], *m_new = c->s_new[1];
    const float alpha = f->beta[1], rest = f->rest[1], eps = f->eps, momentum = f->momentum;

    EACH
    {
        float x = g[i] * scale, b = alpha * s[i] + rest * (x * x);
        float d = momentum * m[i] + x / (sqrtf(b) + eps);
        s_new[i] = b;
        m_new[i] = d;
        w_new[i] = w[i] - (shrink * w[i] + lr * d);
    }
}

BODY adam_body(const tt_chunk *c, const tt_factors *f)
{
    OPEN(c, f);
    const float *m = c->s_old[0], *v = c->s_old[1];
    float *m_new = c->s_new[0], *v_new = c->s_new[1];
    const float b1 = f->beta[0], b2 = f->beta[1], r1 = f->rest[0], r2 = f->rest[1];
    const float unbias = f->unbias[1], eps = f->eps;

    EACH
    {
        float x = g[i] * scale, a = b1 * m[i] + r1 * x, b = b2 * v[i] + r2 * (x * x);
        m_new[i] = a;
        v_new[i] = b;
        w_new[i] = w[i] - (shrink * w[i] + lr * (a / (sqrtf(b) * unbias + eps)));
    }
}

BODY lamb_body(const tt_chunk *c, const tt_factors *f)
{
    const int n = c->n;
    const float *w = c->w_old, *m = c->s_old[0], *v = c->s_old[1];
    float *g = c->g, *m_new = c->s_new[0], *v_new = c->s_new[1];
    const float b1 = f->beta[0], b2 = f->beta[1], r1 = f->rest[0], r2 = f->rest[1];
    const float scale = f->scale, eps = f->eps, decay = f->decay;
    const float unbias1 = f->unbias[0], unbias2 = f->unbias[1];

    EACH
    {
        float x = g[i] * scale, a = b1 * m[i] + r1 * x, b = b2 * v[i] + r2 * (x * x);
        m_new[i] = a;
        v_new[i] = b;
        g[i] = a * unbias1 / (sqrtf(b) * unbias2 + eps) + decay * w[i];
    }
}

/* ---- one set of functions for each instruction set ---- */

#define RULE(name, isa_, target_)                                                                  \
    target_ static void name##_##isa_(const tt_chunk *c, const tt_factors *f)                      \
    {                                                                                              \
        name##_body(c, f);                                                                         \
    }

#define SET(isa_, isa_name, target_)                                                               \
    target_ static void prepare_##isa_(float *to, const float *g, const float *w, int n,           \
                                       float share, float l2, float l1, tt_sum *sum)               \
    {                                                                                              \
        prepare_body(to, g, w, n, share, l2, l1, sum);                                             \
    }                                                                                              \
    target_ static void clip_##isa_(float *g, int n, float most, tt_sum *sum)                      \
    {                                                                                              \
        clip_body(g, n, most, sum);                                                                \
    }                                                                                              \
    target_ static void measure_##isa_(const float *x, int n, tt_sum *sum)                         \
    {                                                                                              \
        measure_body(x, n, sum);                                                                   \
    }                                                                                              \
    target_ static void stat_##isa_(const tt_chunk *c, float samples, float momentum)              \
    {                                                                                              \
        stat_body(c, samples, momentum);                                                           \
    }                                                                                              \
    RULE(sgd, isa_, target_)                                                                       \
    RULE(momentum, isa_, target_)                                                                  \
    RULE(nesterov, isa_, target_)                                                                  \
    RULE(adagrad, isa_, target_)                                                                   \
    RULE(rmsprop, isa_, target_)                                                                   \
    RULE(rmsprop_momentum, isa_, target_)                                                          \
    RULE(adam, isa_, target_)                                                                      \
    RULE(lamb, isa_, target_)                                                                      \
    static const tt_rules set_##isa_ = {isa_name,                                                  \
                                        prepare_##isa_,                                            \
                                        clip_##isa_,                                               \
                                        measure_##isa_,                                            \
                                        stat_##isa_,                                               \
                                        sgd_##isa_,                                                \
                                        momentum_##isa_,                                           \
                                        nesterov_##isa_,                                           \
                                        adagrad_##isa_,                                            \
                                        rmsprop_##isa_,                                            \
                                        rmsprop_momentum_##isa_,                                   \
                                        adam_##isa_,                                               \
                                        lamb_##isa_};

SET(plain, "any", )
#ifdef __x86_64__
SET(avx2, "avx2", __attribute__((target("avx2"))))
SET(avx512, "avx512", __attribute__((target("avx512f"))))
#endif

int tt_rules_list(const tt_rules *out[3])
{
    int count = 0;

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) out[count++] = &set_avx512;
    if (__builtin_cpu_supports("avx2")) out[count++] = &set_avx2;
#endif
    out[count++] = &set_plain;
    return count;
}
