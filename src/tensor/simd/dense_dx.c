/* dense_dx: the gradient of a dense layer's input by the weights as they are.
 *
 * A packed copy for this product would be as large as the weights, and of a layer with many rows it
 * is not needed: a block of the weights is brought into panels (panel.h) as it is read, which
 * serves for so many rows that it costs little. While a block is multiplied, the next one is
 * fetched. The sum over outputs runs in blocks of SUM, whatever the number of rows. */
#include "tensor/simd/panel.h"

enum {
    SUM = VW == 16 ? 128 : 320, /* rows of a panel that stay in L1 */
    ROWS = VW == 16 ? 384 : 96, /* of dx and dy, at a time: dy stays in L2 */
    COLUMNS = 1024,             /* of the weights                  */
};

size_t TT_SIMD(dense_dx_scratch)(int c)
{
    return (size_t)packed(SUM, c < COLUMNS ? c : COLUMNS) * sizeof(float);
}

/* As multiply of panel.h, and with every tile a few lines of what comes next. */
static void multiply_ahead(int m, int64_t n, product t, ahead *next)
{
    const float *a = t.a;
    float *c = t.c;

    t.wide = PANEL;
    for (int64_t j = 0; j < n; j += PANEL, t.b += t.k * PANEL) {
        int columns = n - j < PANEL ? (int)(n - j) : PANEL, nv = ceil_div(columns, VW);
        t.last = columns - (nv - 1) * VW;
        for (int i = 0; i < m; i += TILE_M) {
            ahead_fetch(next);
            t.a = a + i * t.am;
            t.c = c + i * t.ldc + j;
            tiles[nv - 1][min_int(TILE_M, m - i) - 1](&t);
        }
    }
}

void TT_SIMD(dense_dx)(const tt_conv *conv, const tt_conv_args *a)
{
    const int o = conv->win.o, c = conv->win.c;
    float *panels = a->scratch;
    ahead next;

    for (int j0 = 0; j0 < c; j0 += COLUMNS)
        for (int k0 = 0; k0 < o; k0 += SUM) {
            int n = min_int(COLUMNS, c - j0), k = min_int(SUM, o - k0),
                more = min_int(SUM, o - k0 - k);
            const float *w = a->w + (int64_t)k0 * c + j0;
            pack(w, c, k, n, panels);
            /* Only where it lies in one piece: else it would be too much. */
            ahead_set(&next, w + (int64_t)k * c, n == c ? (size_t)more * (size_t)n : 0,
                      (size_t)ceil_div(a->n, TILE_M) * (size_t)panels_of(n));
            for (int64_t m0 = 0; m0 < a->n; m0 += ROWS)
                multiply_ahead((int)(a->n - m0 < ROWS ? a->n - m0 : ROWS), n,
                               (product){.k = k,
                                         .a = a->dy + m0 * o + k0,
                                         .am = o,
                                         .ak = 1,
                                         .b = panels,
                                         .c = a->dx + m0 * c + j0,
                                         .ldc = c,
                                         .add = a->dx_add || k0},
                               &next);
        }
}
