/* What becomes of a sample's vectors together: sums, factorisation machines, dots of all pairs. */
#include "tensor/simd/table.h"

/* ---- sums and factorisation machines ---- */

void TT_SIMD(sum_forward)(const tt_fold_args *a)
{
    for (int i = 0; i < a->n; i++) {
        const tt_act *x = a->x + i * a->k * a->dim;
        for (int64_t d = 0; d < a->dim; d += VW) {
            int take = vtake(d, a->dim);
            vf sum = vzero();
            for (int64_t k = 0; k < a->k; k++) sum += vload_n(x + k * a->dim + d, take);
            vstore_n(a->y + i * a->dim + d, sum, take);
        }
    }
}

void TT_SIMD(sum_backward)(const tt_fold_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t d = 0; d < a->dim; d += VW) {
            int take = vtake(d, a->dim);
            vf dy = vload_n(a->dy + i * a->dim + d, take);
            for (int64_t k = 0; k < a->k; k++)
                vput_n(a->dx + (i * a->k + k) * a->dim + d, dy, take, a->dx_add);
        }
}

void TT_SIMD(fm_forward)(const tt_fold_args *a)
{
    for (int i = 0; i < a->n; i++) {
        const tt_act *x = a->x + i * a->k * a->dim;
        vf y = vzero();
        for (int64_t d = 0; d < a->dim; d += VW) {
            int take = vtake(d, a->dim);
            vf sum = vzero(), squares = vzero();
            for (int64_t k = 0; k < a->k; k++) {
                vf v = vload_n(x + k * a->dim + d, take);
                sum += v;
                squares += v * v;
            }
            y += sum * sum - squares;
        }
        a->y[i] = act_of(0.5f * vsum(y));
    }
}

void TT_SIMD(fm_backward)(const tt_fold_args *a)
{
    for (int i = 0; i < a->n; i++) {
        const tt_act *x = a->x + i * a->k * a->dim;
        tt_act *dx = a->dx + i * a->k * a->dim;
        vf dy = vset1(act_get(a->dy[i]));
        for (int64_t d = 0; d < a->dim; d += VW) {
            int take = vtake(d, a->dim);
            vf sum = vzero();
            for (int64_t k = 0; k < a->k; k++) sum += vload_n(x + k * a->dim + d, take);
            for (int64_t k = 0; k < a->k; k++) {
                int64_t at = k * a->dim + d;
                vput_n(dx + at, dy * (sum - vload_n(x + at, take)), take, a->dx_add);
            }
        }
    }
}

/* ---- interaction ----
 *
 * Forward with the vectors side by side: row r of the dots is a sum of columns, which a vector
 * register takes many of, and no dot is added up across one. Backward with the matrix of the
 * gradients of all dots, of which both halves are there. */

static ALWAYS_INLINE int64_t whole(int64_t n)
{
    return (n + VW - 1) / VW * VW;
}

typedef struct bench { /* of one sample */
    float *x;          /* (k, dim)                        */
    float *side;       /* (dim, k rounded up)             */
    float *g;          /* (k, k)                          */
} bench;

static bench bench_of(const tt_interact_args *a)
{
    bench b = {.x = a->scratch};

    b.side = b.x + whole(a->k * a->dim);
    b.g = b.side + a->dim * whole(a->k);
    return b;
}

size_t TT_SIMD(interact_scratch)(const tt_interact_args *a)
{
    return (size_t)(whole(a->k * a->dim) + a->dim * whole(a->k) + whole(a->k * a->k)) *
           sizeof(float);
}

static void gather(const tt_interact_args *a, int i, float *x)
{
    for (int p = 0; p < a->parts; p++) {
        int64_t n = a->count[p] * a->dim;
        TT_SIMD(widen)(n, a->x[p] + i * n, x);
        x += n;
    }
}

/* Four rows of dots at a time, those up to the diagonal and a little more. */
static ALWAYS_INLINE void dots(const tt_interact_args *a, const bench *b, int64_t r, int rows,
                               tt_act *y)
{
    int64_t wide = whole(a->k);

    for (int64_t c = 0; c < r + rows - 1; c += VW) {
        vf sum[4] = {vzero(), vzero(), vzero(), vzero()};
        for (int64_t d = 0; d < a->dim; d++) {
            vf x = vload(b->side + d * wide + c);
            UNROLL(4) for (int q = 0; q < rows; q++) sum[q] += vset1(b->side[d * wide + r + q]) * x;
        }
        for (int q = 0; q < rows; q++) {
            int64_t row = r + q, left = row - c;
            if (left > 0) vstore_n(y + row * (row - 1) / 2 + c, sum[q], vtake(c, row));
        }
    }
}

void TT_SIMD(interact_forward)(const tt_interact_args *a)
{
    int64_t wide = whole(a->k), out = a->dim + a->k * (a->k - 1) / 2;
    bench b = bench_of(a);

    memset(b.side, 0, (size_t)(a->dim * wide) * sizeof *b.side);
    for (int i = 0; i < a->n; i++) {
        tt_act *y = a->y + i * out;
        int64_t r = 1;
        gather(a, i, b.x);
        for (int64_t k = 0; k < a->k; k++)
            for (int64_t d = 0; d < a->dim; d++) b.side[d * wide + k] = b.x[k * a->dim + d];
        TT_SIMD(narrow)(a->dim, b.x, y, false);
        for (; r + 4 <= a->k; r += 4) dots(a, &b, r, 4, y + a->dim);
        for (; r < a->k; r++) dots(a, &b, r, 1, y + a->dim);
    }
}

/* Both halves of the gradients of the dots; nobody's with itself. */
static void spread(const tt_interact_args *a, const tt_act *dy, float *g)
{
    for (int64_t r = 0; r < a->k; r++) {
        g[r * a->k + r] = 0;
        for (int64_t c = 0; c < r; c++) g[r * a->k + c] = g[c * a->k + r] = act_get(*dy++);
    }
}

/* The gradients of `rows` vectors from r on, into sum. */
static ALWAYS_INLINE void combine(const tt_interact_args *a, const bench *b, int64_t r, int rows,
                                  int64_t d, int take, vf sum[4])
{
    UNROLL(4) for (int q = 0; q < rows; q++) sum[q] = vzero();
    for (int64_t c = 0; c < a->k; c++) {
        vf x = vload_n(b->x + c * a->dim + d, take);
        UNROLL(4) for (int q = 0; q < rows; q++) sum[q] += vset1(b->g[(r + q) * a->k + c]) * x;
    }
}

/* In their order: two parts may be the same tensor, of which the second adds. */
void TT_SIMD(interact_backward)(const tt_interact_args *a)
{
    int64_t out = a->dim + a->k * (a->k - 1) / 2;
    bench b = bench_of(a);

    for (int i = 0; i < a->n; i++) {
        const tt_act *dy = a->dy + i * out;
        int64_t r = 0;
        gather(a, i, b.x);
        spread(a, dy + a->dim, b.g);
        for (int p = 0; p < a->parts; r += a->count[p++]) {
            tt_act *dx = a->dx[p] ? a->dx[p] + i * a->count[p] * a->dim : NULL;
            for (int64_t c = 0; dx && c < a->count[p];) {
                int rows = a->count[p] - c >= 4 ? 4 : 1;
                for (int64_t d = 0; d < a->dim; d += VW) {
                    int take = vtake(d, a->dim);
                    vf sum[4];
                    if (rows == 4)
                        combine(a, &b, r + c, 4, d, take, sum);
                    else
                        combine(a, &b, r + c, 1, d, take, sum);
                    if (r + c == 0) sum[0] += vload_n(dy + d, take);
                    for (int q = 0; q < rows; q++)
                        vput_n(dx + (c + q) * a->dim + d, sum[q], take, a->dx_add[p]);
                }
                c += rows;
            }
        }
    }
}
