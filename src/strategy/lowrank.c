/* The matrices are walked in tiles of columns, for which Q stands transposed: (rank, width).
 *
 * The loops stand as always-inlined bodies, of which isa.h makes a set for each instruction set.
 * Every set gives the same bits: multiply and add are never fused, and sums have as many lanes
 * everywhere. */
#include "strategy/lowrank.h"

#include <math.h>
#include <string.h>

#include "strategy/isa.h"

#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")

enum { GROUP = 4, LANES = 16, TILE = 8192, WIDEST = 512 };

typedef struct tile {
    int width, ranks; /* a multiple of LANES, of GROUP: zero where there is no more */
    float q[TILE];
} tile;

INLINE void tile_shape(tile *t, int rank)
{
    t->ranks = (rank + GROUP - 1) / GROUP * GROUP;
    t->width = TILE / t->ranks / LANES * LANES;
    if (t->width > WIDEST) t->width = WIDEST;
}

INLINE void tile_read(tile *t, int n, int rank, const float *q)
{
    memset(t->q, 0, sizeof *t->q * (size_t)(t->ranks * t->width));
    for (int c = 0; c < n; c++)
        for (int j = 0; j < rank; j++) t->q[j * t->width + c] = q[c * rank + j];
}

INLINE void tile_write(const tile *t, int n, int rank, float *q)
{
    for (int c = 0; c < n; c++)
        for (int j = 0; j < rank; j++) q[c * rank + j] = t->q[j * t->width + c];
}

/* Products of n values with GROUP rows of the tile, in lanes. */
INLINE void dots(const float *restrict v, int n, const float *restrict q, int width,
                 float out[GROUP])
{
    float sum[GROUP][LANES] = {0};
    int i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            for (int g = 0; g < GROUP; g++) sum[g][k] += v[i + k] * q[g * width + i + k];
    for (int g = 0; g < GROUP; g++) {
        for (int k = 0; i + k < n; k++) sum[g][k] += v[i + k] * q[g * width + i + k];
        for (int half = LANES / 2; half; half /= 2)
            for (int k = 0; k < half; k++) sum[g][k] += sum[g][k + half];
        out[g] = sum[g][0];
    }
}

INLINE void p_body(int64_t rows, int64_t cols, int rank, const float *v, const float *q, float *p)
{
    tile t;
    float sum[GROUP];

    tile_shape(&t, rank);
    memset(p, 0, sizeof *p * (size_t)(rows * rank));
    for (int64_t at = 0; at < cols; at += t.width) {
        int n = cols - at < t.width ? (int)(cols - at) : t.width;
        tile_read(&t, n, rank, q + at * rank);
        for (int64_t i = 0; i < rows; i++)
            for (int j = 0; j < rank; j += GROUP) {
                dots(v + i * cols + at, n, t.q + j * t.width, t.width, sum);
                for (int k = 0; k < GROUP && j + k < rank; k++) p[i * rank + j + k] += sum[k];
            }
    }
}

INLINE void q_body(int64_t rows, int64_t cols, int rank, const float *v, const float *p, float *q)
{
    tile t;

    tile_shape(&t, rank);
    for (int64_t at = 0; at < cols; at += t.width) {
        int n = cols - at < t.width ? (int)(cols - at) : t.width;
        int64_t i = 0;
        memset(t.q, 0, sizeof *t.q * (size_t)(t.ranks * t.width));
        for (; i + 4 <= rows; i += 4) /* rows, so that the sums are read and written less often */
            for (int j = 0; j < rank; j++) {
                const float *x = v + i * cols + at, *f = p + i * rank + j;
                float *restrict to = t.q + j * t.width;
                float f0 = f[0], f1 = f[rank], f2 = f[2 * rank], f3 = f[3 * rank];
                for (int c = 0; c < n; c++)
                    to[c] = to[c] + x[c] * f0 + x[cols + c] * f1 + x[2 * cols + c] * f2 +
                            x[3 * cols + c] * f3;
            }
        for (; i < rows; i++)
            for (int j = 0; j < rank; j++) {
                const float *x = v + i * cols + at, f = p[i * rank + j];
                float *restrict to = t.q + j * t.width;
                for (int c = 0; c < n; c++) to[c] += x[c] * f;
            }
        tile_write(&t, n, rank, q + at * rank);
    }
}

INLINE void product_body(int64_t rows, int64_t cols, int rank, const float *p, const float *q,
                         float *m)
{
    tile t;

    tile_shape(&t, rank);
    for (int64_t at = 0; at < cols; at += t.width) {
        int n = cols - at < t.width ? (int)(cols - at) : t.width;
        tile_read(&t, n, rank, q + at * rank);
        for (int64_t i = 0; i < rows; i++)
            for (int j = 0; j < rank; j += GROUP) {
                float *restrict to = m + i * cols + at;
                const float *x = t.q + j * t.width, *x1 = x + t.width, *x2 = x1 + t.width,
                            *x3 = x2 + t.width;
                float f[GROUP] = {0};
                for (int k = 0; k < GROUP && j + k < rank; k++) f[k] = p[i * rank + j + k];
                if (!j) {
                    for (int c = 0; c < n; c++)
                        to[c] = x[c] * f[0] + x1[c] * f[1] + x2[c] * f[2] + x3[c] * f[3];
                } else {
                    for (int c = 0; c < n; c++)
                        to[c] = to[c] + x[c] * f[0] + x1[c] * f[1] + x2[c] * f[2] + x3[c] * f[3];
                }
            }
    }
}

/* ---- one set of loops for each instruction set ---- */

#define MATRIX_PARAMS                                                                              \
    (int64_t rows, int64_t cols, int rank, const float *a, const float *b, float *c)
#define MATRIX_ARGS (rows, cols, rank, a, b, c)

#define LOOPS(X, isa, target)                                                                      \
    X(isa, target, void, p, MATRIX_PARAMS, MATRIX_ARGS)                                            \
    X(isa, target, void, q, MATRIX_PARAMS, MATRIX_ARGS)                                            \
    X(isa, target, void, product, MATRIX_PARAMS, MATRIX_ARGS)

ISA_SETS

/* ---- the calls ---- */

bool lowrank_pays(int64_t rows, int64_t cols, int rank)
{
    return (double)rows * (double)cols > rank * ((double)rows + (double)cols);
}

/* Gram-Schmidt, each column taken out of those after it, so that memory is walked along the rows.
 * What is left of a column that was (nearly) a sum of others is rounding error, no direction: below
 * `least` of its squared length it is set to zero. */
static void orthonormalise(int64_t rows, int rank, float *p, double least)
{
    double was[LOWRANK_MOST] = {0}, dot[LOWRANK_MOST];

    for (int64_t i = 0; i < rows; i++)
        for (int k = 0; k < rank; k++) was[k] += (double)p[i * rank + k] * p[i * rank + k];
    for (int j = 0; j < rank; j++) {
        double square = 0, scale;
        for (int64_t i = 0; i < rows; i++) square += (double)p[i * rank + j] * p[i * rank + j];
        /* with an infinity the scale is zero too, but that times infinity is a NaN: still seen */
        scale = square <= least * was[j] ? 0 : 1 / sqrt(square);
        memset(dot, 0, sizeof dot);
        for (int64_t i = 0; i < rows; i++) {
            float *row = p + i * rank;
            row[j] = (float)(row[j] * scale);
            for (int k = j + 1; k < rank; k++) dot[k] += (double)row[j] * row[k];
        }
        for (int64_t i = 0; i < rows; i++) {
            float *row = p + i * rank, f = row[j];
            for (int k = j + 1; k < rank; k++) row[k] = (float)(row[k] - dot[k] * f);
        }
    }
}

/* Twice: the first time leaves columns that were nearly alike not quite at right angles. */
void lowrank_orthonormalise(int64_t rows, int rank, float *p)
{
    TT_ASSERT(rank >= 1 && rank <= LOWRANK_MOST);
    orthonormalise(rows, rank, p, 0x1p-36);
    orthonormalise(rows, rank, p, 0x1p-36);
}

/* Column j of Q, random. */
static void draw(int64_t cols, int rank, int j, uint64_t key, float *q)
{
    float x[4];

    for (int64_t c = 0; c < cols; c++) {
        if (c % 4 == 0) tt_normal4(key, (uint64_t)j, (uint64_t)(c / 4), x);
        q[c * rank + j] = x[c % 4];
    }
}

void lowrank_start(int64_t cols, int rank, uint64_t seed, float *q)
{
    uint64_t key = tt_random_key(seed, "low rank");

    for (int j = 0; j < rank; j++) draw(cols, rank, j, key, q);
    lowrank_orthonormalise(cols, rank, q);
}

/* What is zero or not finite is drawn; then what turns out to be a sum of the others. */
void lowrank_renew(int64_t cols, int rank, uint64_t seed, float *q)
{
    uint64_t key = tt_random_key(seed, "low rank again");

    for (int round = 0; round < 2; round++) {
        bool change = round == 0;
        for (int j = 0; j < rank; j++) {
            double square = 0;
            for (int64_t c = 0; c < cols; c++) square += (double)q[c * rank + j] * q[c * rank + j];
            if (square > 0 && isfinite(square)) continue;
            draw(cols, rank, j, key, q);
            change = true;
        }
        if (change) lowrank_orthonormalise(cols, rank, q);
    }
}

static void multiply(void(*by) MATRIX_PARAMS, int64_t rows, int64_t cols, int rank, const float *a,
                     const float *b, float *c)
{
    TT_ASSERT(rows >= 0 && cols >= 0 && rank >= 1 && rank <= LOWRANK_MOST);
    by(rows, cols, rank, a, b, c);
}

void lowrank_p(int64_t rows, int64_t cols, int rank, const float *v, const float *q, float *p)
{
    multiply(best_loops()->p, rows, cols, rank, v, q, p);
}

void lowrank_q(int64_t rows, int64_t cols, int rank, const float *v, const float *p, float *q)
{
    multiply(best_loops()->q, rows, cols, rank, v, p, q);
}

void lowrank_product(int64_t rows, int64_t cols, int rank, const float *p, const float *q, float *m)
{
    multiply(best_loops()->product, rows, cols, rank, p, q, m);
}
