/* Batch normalisation. Two ways to go over a x c x b, chosen by b:
 *
 *   - rows (b == 1; NHWC and vectors): a vector holds neighbouring channels, coefficients are
 * vectors too;
 *   - runs (b > 1; PLAIN and LANES): a vector holds neighbours of one channel, coefficients are
 *     broadcast.
 *
 * Sums are taken in float over BLOCK elements at most, then in double, so that their error does not
 * grow with the batch; and relative to the channel's first element, so that a mean far from 0 does
 * not swallow the variance. In LANES the padded lanes of the last slice count nowhere, and get no
 * gradient. */
#include "tensor/simd/table.h"

enum {
    BLOCK = 32,    /* elements that one lane adds up in float       */
    CHANNELS = 512 /* rows: coefficients of so many lie on the stack */
};

/* The run of channel c in slice i; in LANES `keep` says which lanes of it are samples. */
typedef struct run {
    int64_t at, n;
    vi keep;
    bool all; /* keep is all ones */
} run;

static ALWAYS_INLINE run run_of(const tt_norm_args *a, int64_t i, int64_t c)
{
    run r = {.at = (i * a->c + c) * a->b, .n = a->b, .all = true};

    if (a->lanes && i == a->a - 1 && a->valid < a->lanes) {
        r.all = false;
        r.keep = vfirst(a->valid);
    }
    return r;
}

static double count_of(const tt_norm_args *a)
{
    double n = (double)a->a * (double)a->b;

    if (a->lanes && a->a) n -= (double)(a->b / a->lanes) * (a->lanes - a->valid);
    return n;
}

static void check(const tt_norm_args *a)
{
    TT_ASSERT(!a->lanes || (a->lanes == VW && a->b % VW == 0));
}

/* ---- Sums ---- */

/* One pair of terms: v, v * v with v = x - the channel's first; or dy, dy * (x - mean), dy masked
 * first. */
typedef struct terms {
    const tt_norm_args *a;
    bool back, relu;
} terms;

static ALWAYS_INLINE void term(terms t, int64_t at, int n, vf shift, vf *one, vf *two)
{
    vf x = vload_n(t.a->x + at, n) - shift;

    if (!t.back) {
        *one = x;
        *two = x * x;
        return;
    }
    vf dy = vload_n(t.a->dy + at, n);
    if (t.relu) {
        dy = vpick(vload_n(t.a->y + at, n) <= 0, vzero(), dy);
        vstore_n(t.a->dy + at, dy, n);
    }
    *one = dy;
    *two = dy * x;
}

/* What x is taken relative to: of a channel, or, in rows, of n from it on. */
static ALWAYS_INLINE float base_of(terms t, int64_t c)
{
    return t.back ? t.a->mean[c] : act_get(t.a->x[c * t.a->b]);
}
static ALWAYS_INLINE vf bases_of(terms t, int64_t c, int n)
{
    return t.back ? vload_n(t.a->mean + c, n) : vload_n(t.a->x + c, n);
}

static ALWAYS_INLINE void run_sums(terms t, run r, float shift, double *one, double *two)
{
    const vf s = vset1(shift);

    for (int64_t from = 0; from < r.n; from += 2 * BLOCK * VW) {
        int64_t to = r.n - from < 2 * BLOCK * VW ? r.n : from + 2 * BLOCK * VW, i = from;
        vf p0 = vzero(), p1 = vzero(), q0 = vzero(), q1 = vzero(), p, q;
        for (; r.all && i + 2 * VW <= to; i += 2 * VW) { /* two chains: additions take 4 cycles */
            term(t, r.at + i, VW, s, &p, &q);
            p0 += p, q0 += q;
            term(t, r.at + i + VW, VW, s, &p, &q);
            p1 += p, q1 += q;
        }
        for (; i < to; i += VW) {
            vi keep = r.all ? vfirst(vtake(i, to)) : r.keep;
            term(t, r.at + i, vtake(i, to), s, &p, &q);
            p0 += (vf)((vi)p & keep), q0 += (vf)((vi)q & keep);
        }
        *one += vsum(p0 + p1);
        *two += vsum(q0 + q1);
    }
}

/* BLOCK rows of `vecs` vectors of channels, the last of them n wide. */
static ALWAYS_INLINE void block_sums(terms t, int64_t row, int64_t rows, int64_t c, int vecs, int n)
{
    const tt_norm_args *a = t.a;
    vf p[4], q[4], shift[4], one, two;

    for (int v = 0; v < vecs; v++) {
        p[v] = q[v] = vzero();
        shift[v] = bases_of(t, c + v * VW, v < vecs - 1 ? VW : n);
    }
    for (int64_t i = row; i < row + rows; i++)
        for (int v = 0; v < vecs; v++) {
            term(t, i * a->c + c + v * VW, v < vecs - 1 ? VW : n, shift[v], &one, &two);
            p[v] += one;
            q[v] += two;
        }
    for (int v = 0; v < vecs; v++) {
        float sum[VW], square[VW];
        vstore(sum, p[v]);
        vstore(square, q[v]);
        for (int k = 0; k < (v < vecs - 1 ? VW : n); k++) {
            a->sums[c + v * VW + k] += sum[k];
            a->sums[a->c + c + v * VW + k] += square[k];
        }
    }
}

static ALWAYS_INLINE void sums(terms t)
{
    const tt_norm_args *a = t.a;

    check(a);
    memset(a->sums, 0, (size_t)(2 * a->c) * sizeof *a->sums);
    a->sums[2 * a->c] = count_of(a);
    if (a->b > 1) {
        for (int64_t i = 0; i < a->a; i++)
            for (int64_t c = 0; c < a->c; c++)
                run_sums(t, run_of(a, i, c), base_of(t, c), &a->sums[c], &a->sums[a->c + c]);
        return;
    }
    for (int64_t i = 0; i < a->a; i += BLOCK) {
        int64_t rows = a->a - i < BLOCK ? a->a - i : BLOCK, c = 0;
        for (; c + 4 * VW <= a->c; c += 4 * VW) block_sums(t, i, rows, c, 4, VW);
        for (; c < a->c; c += VW) block_sums(t, i, rows, c, 1, vtake(c, a->c));
    }
}

void TT_SIMD(norm_sums)(const tt_norm_args *a)
{
    sums((terms){.a = a});
    /* From the first element to the shift that all grains share. */
    for (int64_t c = 0; c < a->c && a->a; c++) {
        double *one = &a->sums[c], *two = &a->sums[a->c + c], n = a->sums[2 * a->c];
        double d = (double)base_of((terms){.a = a}, c) - (a->shift ? a->shift[c] : 0);

        *two += 2 * d * *one + n * d * d;
        *one += n * d;
    }
}

void TT_SIMD(norm_backward_sums)(const tt_norm_args *a)
{
    if (a->relu)
        sums((terms){.a = a, .back = true, .relu = true});
    else
        sums((terms){.a = a, .back = true});
    for (int64_t c = 0; c < a->c; c++) a->sums[a->c + c] *= a->rstd[c]; /* x - mean to xhat */
}

/* ---- Elements ---- */

/* One vector of the result: relu((x - mean) k + c + add), or (dx +) k dy + d (x - mean) + c, with
 * coefficients of its channel. */
typedef struct coef {
    vf mean, k, c, d;
} coef;

typedef struct step {
    const tt_norm_args *a;
    bool back, relu, add;
} step;

static ALWAYS_INLINE void element(step s, int64_t at, int n, const coef *k, const vi *keep)
{
    const tt_norm_args *a = s.a;
    vf x = vload_n(a->x + at, n) - k->mean;

    if (s.back) {
        vf dx = vload_n(a->dy + at, n) * k->k + (x * k->d + k->c);
        if (keep) dx = (vf)((vi)dx & *keep);
        vput_n(a->dx + at, dx, n, s.add);
        return;
    }
    vf y = x * k->k + k->c;
    if (s.add) y += vload_n(a->add + at, n);
    vstore_n(a->y + at, s.relu ? vrelu(y) : y, n);
}

/* A channel's coefficients, in the order of coef. */
static ALWAYS_INLINE void coef_at(step s, int64_t c, float out[4])
{
    const tt_norm_args *a = s.a;
    double k = (a->gamma ? a->gamma[c] : 1) * (double)a->rstd[c];

    out[0] = a->mean[c];
    out[1] = (float)k;
    if (s.back) {
        double count = a->sums[2 * a->c], share = count > 0 ? 1 / count : 0;
        out[2] = (float)(-k * a->sums[c] * share);
        out[3] = (float)(-k * a->rstd[c] * a->sums[a->c + c] * share);
    } else {
        out[2] = a->beta ? a->beta[c] : 0;
        out[3] = 0;
    }
}

static ALWAYS_INLINE void element_runs(step s)
{
    const tt_norm_args *a = s.a;

    for (int64_t i = 0; i < a->a; i++)
        for (int64_t c = 0; c < a->c; c++) {
            run r = run_of(a, i, c);
            float f[4];
            coef_at(s, c, f);
            coef k = {vset1(f[0]), vset1(f[1]), vset1(f[2]), vset1(f[3])};
            if (r.all)
                for (int64_t j = 0; j < r.n; j += VW) element(s, r.at + j, vtake(j, r.n), &k, NULL);
            else
                for (int64_t j = 0; j < r.n; j += VW) element(s, r.at + j, VW, &k, &r.keep);
        }
}

static ALWAYS_INLINE void element_rows(step s)
{
    const tt_norm_args *a = s.a;
    float t[4][CHANNELS];

    for (int64_t c0 = 0; c0 < a->c; c0 += CHANNELS) {
        int width = a->c - c0 < CHANNELS ? (int)(a->c - c0) : CHANNELS;
        for (int j = 0; j < width; j++) {
            float f[4];
            coef_at(s, c0 + j, f);
            for (int p = 0; p < 4; p++) t[p][j] = f[p];
        }
        for (int64_t i = 0; i < a->a; i++)
            for (int j = 0; j < width;
                 j += VW) { /* CHANNELS is whole vectors: the end may be read */
                coef k = {vload(t[0] + j), vload(t[1] + j), vload(t[2] + j), vload(t[3] + j)};
                element(s, i * a->c + c0 + j, vtake(j, width), &k, NULL);
            }
    }
}

static ALWAYS_INLINE void elements(step s)
{
    check(s.a);
    if (s.a->b > 1)
        element_runs(s);
    else
        element_rows(s);
}

void TT_SIMD(norm_forward)(const tt_norm_args *a)
{
    if (a->relu && a->add)
        elements((step){.a = a, .relu = true, .add = true});
    else if (a->relu)
        elements((step){.a = a, .relu = true});
    else if (a->add)
        elements((step){.a = a, .add = true});
    else
        elements((step){.a = a});
}

void TT_SIMD(norm_backward)(const tt_norm_args *a)
{
    if (a->dx && a->dx_add)
        elements((step){.a = a, .back = true, .add = true});
    else if (a->dx)
        elements((step){.a = a, .back = true});
}
