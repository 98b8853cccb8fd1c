/* Batch normalisation, in the four steps its callers can put sums over grains between. */
#include "tensor/ref/ref.h"

static int64_t at(const tt_norm_args *a, int64_t i, int64_t c, int64_t j)
{
    return (i * a->c + c) * a->b + j;
}

void REF(norm_sums)(const tt_norm_args *a)
{
    TT_ASSERT(!a->lanes);
    for (int64_t c = 0; c < a->c; c++) {
        double sum = 0, square = 0, shift = a->shift ? a->shift[c] : 0;
        for (int64_t i = 0; i < a->a; i++)
            for (int64_t j = 0; j < a->b; j++) {
                double v = get(a->x[at(a, i, c, j)]) - shift;
                sum += v;
                square += v * v;
            }
        a->sums[c] = sum;
        a->sums[a->c + c] = square;
    }
    a->sums[2 * a->c] = (double)(a->a * a->b);
}

static double xhat(const tt_norm_args *a, int64_t c, int64_t k)
{
    return (get(a->x[k]) - a->mean[c]) * a->rstd[c];
}

void REF(norm_forward)(const tt_norm_args *a)
{
    TT_ASSERT(!a->lanes);
    for (int64_t i = 0; i < a->a; i++)
        for (int64_t c = 0; c < a->c; c++)
            for (int64_t j = 0; j < a->b; j++) {
                int64_t k = at(a, i, c, j);
                double v = xhat(a, c, k) * (a->gamma ? a->gamma[c] : 1);
                v += a->beta ? a->beta[c] : 0;
                v += a->add ? get(a->add[k]) : 0;
                set(&a->y[k], a->relu && v < 0 ? 0 : v);
            }
}

void REF(norm_backward_sums)(const tt_norm_args *a)
{
    TT_ASSERT(!a->lanes);
    for (int64_t c = 0; c < a->c; c++) {
        double sum = 0, dot = 0;
        for (int64_t i = 0; i < a->a; i++)
            for (int64_t j = 0; j < a->b; j++) {
                int64_t k = at(a, i, c, j);
                if (a->relu && get(a->y[k]) <= 0) set(&a->dy[k], 0);
                sum += get(a->dy[k]);
                dot += get(a->dy[k]) * xhat(a, c, k);
            }
        a->sums[c] = sum;
        a->sums[a->c + c] = dot;
    }
    a->sums[2 * a->c] = (double)(a->a * a->b);
}

void REF(norm_backward)(const tt_norm_args *a)
{
    double count = a->sums[2 * a->c], share = count > 0 ? 1 / count : 0;

    TT_ASSERT(!a->lanes);
    for (int64_t c = 0; c < a->c; c++) {
        double sum = a->sums[c], dot = a->sums[a->c + c];
        double slope = (a->gamma ? a->gamma[c] : 1) * (double)a->rstd[c];
        for (int64_t i = 0; a->dx && i < a->a; i++)
            for (int64_t j = 0; j < a->b; j++) {
                int64_t k = at(a, i, c, j);
                double v = get(a->dy[k]) - sum * share - xhat(a, c, k) * dot * share;
                put(&a->dx[k], slope * v, a->dx_add);
            }
    }
}
