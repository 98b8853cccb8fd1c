/* Layer normalisation and softmax: over the middle of outer x d x inner. */
#include <math.h>

#include "tensor/ref/ref.h"

/* Element k of row (o, i). */
static int64_t at(const tt_rows_args *a, int64_t o, int64_t k, int64_t i)
{
    return (o * a->d + k) * a->inner + i;
}

static void each(const tt_rows_args *a, void (*fn)(const tt_rows_args *a, int64_t o, int64_t i))
{
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t i = 0; i < a->inner; i++) fn(a, o, i);
}

static void layernorm_row(const tt_rows_args *a, int64_t o, int64_t i)
{
    double mean = 0, square = 0;

    for (int64_t k = 0; k < a->d; k++) mean += get(a->x[at(a, o, k, i)]);
    mean /= (double)a->d;
    for (int64_t k = 0; k < a->d; k++) {
        double v = get(a->x[at(a, o, k, i)]) - mean;
        square += v * v;
    }
    double rstd = 1 / sqrt(square / (double)a->d + a->eps);
    for (int64_t k = 0; k < a->d; k++) {
        double v = (get(a->x[at(a, o, k, i)]) - mean) * rstd;
        v = v * (a->gamma ? a->gamma[k] : 1) + (a->beta ? a->beta[k] : 0);
        set(&a->y[at(a, o, k, i)], v);
    }
    if (a->mean) a->mean[o * a->inner + i] = (float)mean;
    if (a->rstd) a->rstd[o * a->inner + i] = (float)rstd;
}

void REF(layernorm_forward)(const tt_rows_args *a)
{
    each(a, layernorm_row);
}

static double xhat(const tt_rows_args *a, int64_t o, int64_t k, int64_t i)
{
    int64_t row = o * a->inner + i;
    return (get(a->x[at(a, o, k, i)]) - a->mean[row]) * a->rstd[row];
}

static void layernorm_row_back(const tt_rows_args *a, int64_t o, int64_t i)
{
    double sum = 0, dot = 0, share = 1 / (double)a->d;

    for (int64_t k = 0; k < a->d; k++) {
        double g = get(a->dy[at(a, o, k, i)]) * (a->gamma ? a->gamma[k] : 1);
        sum += g;
        dot += g * xhat(a, o, k, i);
    }
    for (int64_t k = 0; k < a->d; k++) {
        double g = get(a->dy[at(a, o, k, i)]) * (a->gamma ? a->gamma[k] : 1);
        double v = g - sum * share - xhat(a, o, k, i) * dot * share;
        put(&a->dx[at(a, o, k, i)], v * a->rstd[o * a->inner + i], a->dx_add);
    }
}

void REF(layernorm_backward)(const tt_rows_args *a)
{
    for (int64_t k = 0; k < a->d; k++) {
        double dgamma = 0, dbeta = 0;
        for (int64_t o = 0; o < a->outer; o++)
            for (int64_t i = 0; i < a->inner; i++) {
                double dy = get(a->dy[at(a, o, k, i)]);
                dgamma += dy * xhat(a, o, k, i);
                dbeta += dy;
            }
        if (a->dgamma) put_float(&a->dgamma[k], dgamma, a->dw_add);
        if (a->dbeta) put_float(&a->dbeta[k], dbeta, a->dw_add);
    }
    if (a->dx) each(a, layernorm_row_back);
}

/* The row's largest element, and the sum of exponentials below it. */
static void softmax_parts(const tt_rows_args *a, int64_t o, int64_t i, double *most, double *sum)
{
    *most = -INFINITY;
    *sum = 0;
    for (int64_t k = 0; k < a->d; k++) *most = fmax(*most, get(a->x[at(a, o, k, i)]));
    for (int64_t k = 0; k < a->d; k++) *sum += exp(get(a->x[at(a, o, k, i)]) - *most);
}

static void softmax_row(const tt_rows_args *a, int64_t o, int64_t i)
{
    double most, sum;

    softmax_parts(a, o, i, &most, &sum);
    for (int64_t k = 0; k < a->d; k++)
        set(&a->y[at(a, o, k, i)], exp(get(a->x[at(a, o, k, i)]) - most) / sum);
}

static void log_softmax_row(const tt_rows_args *a, int64_t o, int64_t i)
{
    double most, sum;

    softmax_parts(a, o, i, &most, &sum);
    for (int64_t k = 0; k < a->d; k++)
        set(&a->y[at(a, o, k, i)], get(a->x[at(a, o, k, i)]) - most - log(sum));
}

void REF(softmax_forward)(const tt_rows_args *a, bool log)
{
    each(a, log ? log_softmax_row : softmax_row);
}

static void softmax_row_back(const tt_rows_args *a, int64_t o, int64_t i)
{
    double dot = 0;

    for (int64_t k = 0; k < a->d; k++)
        dot += get(a->dy[at(a, o, k, i)]) * get(a->x[at(a, o, k, i)]);
    for (int64_t k = 0; k < a->d; k++) {
        int64_t e = at(a, o, k, i);
        put(&a->dx[e], get(a->x[e]) * (get(a->dy[e]) - dot), a->dx_add);
    }
}

static void log_softmax_row_back(const tt_rows_args *a, int64_t o, int64_t i)
{
    double sum = 0;

    for (int64_t k = 0; k < a->d; k++) sum += get(a->dy[at(a, o, k, i)]);
    for (int64_t k = 0; k < a->d; k++) {
        int64_t e = at(a, o, k, i);
        put(&a->dx[e], get(a->dy[e]) - exp(get(a->x[e])) * sum, a->dx_add);
    }
}

void REF(softmax_backward)(const tt_rows_args *a, bool log)
{
    each(a, log ? log_softmax_row_back : softmax_row_back);
}
