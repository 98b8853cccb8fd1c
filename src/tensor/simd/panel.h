/* panel: products of matrices of any strides, for kernels that compute many of them: rows of A, at
 * any stride, by B in *panels*, [columns / PANEL][rows][PANEL], so that a tile of registers reads B
 * as it lies. What is B is packed once and serves many rows. */
#ifndef TT_SIMD_PANEL_H
#define TT_SIMD_PANEL_H

#include "tensor/simd/nhwc.h"

/* c(i, j) = or += sum over p of a(i, p) * b(p, j), for a tile of rows and one panel's vectors. */
typedef struct product {
    int64_t k;
    const float *a;
    int64_t am, ak; /* from row to row, and along it */
    const float *b;
    bool narrow; /* the last panel of b is as wide as its vectors, as conv_pack makes it */
    float *c;
    int64_t ldc;
    bool add;
    int wide, last; /* of a panel: its width, lanes of its last vector; multiply sets both */
} product;

#define TILE(m, nv)                                                                                \
    static void tile_##m##x##nv(const product *t)                                                  \
    {                                                                                              \
        vf acc[m][nv];                                                                             \
        EACH(i, m) EACH(j, nv) acc[i][j] = vzero();                                                \
        for (int64_t p = 0; p < t->k; p++) {                                                       \
            const float *a = t->a + p * t->ak, *b = t->b + p * t->wide;                            \
            vf v[nv];                                                                              \
            EACH(j, nv) v[j] = *(const vf *)(b + j * VW);                                          \
            EACH(i, m)                                                                             \
            {                                                                                      \
                vf x = vset1(a[i * t->am]);                                                        \
                EACH(j, nv) acc[i][j] += x * v[j];                                                 \
            }                                                                                      \
        }                                                                                          \
        EACH(i, m)                                                                                 \
        EACH(j, nv)                                                                                \
        vput_n(t->c + i * t->ldc + j * VW, acc[i][j], LANES(j, nv, t->last), t->add);              \
    }
TILES
static void (*const tiles[TILE_NV][TILE_M])(const product *) = TILE_TABLE;

static inline int panels_of(int64_t columns)
{
    return (int)((columns + PANEL - 1) / PANEL);
}

/* Floats of panels of `rows` rows of n numbers. */
static inline int64_t packed(int64_t rows, int64_t n)
{
    return (int64_t)panels_of(n) * PANEL * rows;
}

/* m rows by n columns of c; `rows` are those of the whole of b, of which the first k take part. */
static inline void multiply(int m, int64_t n, product t, int64_t rows)
{
    const float *a = t.a;
    float *c = t.c;

    for (int64_t j = 0; j < n; j += PANEL, t.b += rows * PANEL) {
        int columns = n - j < PANEL ? (int)(n - j) : PANEL, nv = ceil_div(columns, VW);
        t.wide = t.narrow ? nv * VW : PANEL;
        t.last = columns - (nv - 1) * VW;
        for (int i = 0; i < m; i += TILE_M) {
            t.a = a + i * t.am;
            t.c = c + i * t.ldc + j;
            tiles[nv - 1][min_int(TILE_M, m - i) - 1](&t);
        }
    }
}

/* `rows` rows of n numbers, `step` apart, as panels. */
static inline void pack(const float *x, int64_t step, int64_t rows, int64_t n, float *to)
{
    for (int64_t j = 0; j < n; j += PANEL)
        for (int64_t r = 0; r < rows; r++, to += PANEL)
            for (int64_t k = 0; k < PANEL; k += VW)
                *(vf *)(to + k) =
                    j + k < n ? vload_n(x + r * step + j + k, vtake(j + k, n)) : vzero();
}

/* The same of n rows turned to columns, times a factor. */
static inline void pack_turned(const float *x, int64_t step, int64_t rows, int64_t n, float factor,
                               float *to)
{
    for (int64_t j = 0; j < n; j += PANEL, to += rows * PANEL)
        for (int64_t k = 0; k < PANEL; k++)
            for (int64_t r = 0; r < rows; r++)
                to[r * PANEL + k] = j + k < n ? x[(j + k) * step + r] * factor : 0;
}

#endif
