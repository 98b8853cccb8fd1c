/* Attention, as it is written down. */
#include <math.h>
#include <string.h>

#include "tensor/ref/ref.h"

size_t REF(attend_scratch)(const tt_attend_args *a)
{
    return (size_t)a->t * (2 + 3 * (size_t)a->dim) * sizeof(double);
}

/* Number d of the query (part 0), key (1) or value (2) of a position, in x or dx. */
static int64_t at(const tt_attend_args *a, int i, int t, int part, int h, int d)
{
    return ((((int64_t)i * a->t + t) * 3 + part) * a->heads + h) * a->dim + d;
}

static int64_t at_y(const tt_attend_args *a, int i, int t, int h, int d)
{
    return (((int64_t)i * a->t + t) * a->heads + h) * a->dim + d;
}

static int seen(const tt_attend_args *a, int t)
{
    return a->causal ? t + 1 : a->t;
}

/* The scores of a position; returns the log of the sum of their exponentials. */
static double scores(const tt_attend_args *a, int i, int h, int t, double *s)
{
    double most = -INFINITY, sum = 0;

    for (int j = 0; j < seen(a, t); j++) {
        double dot = 0;
        for (int d = 0; d < a->dim; d++)
            dot += get(a->x[at(a, i, t, 0, h, d)]) * get(a->x[at(a, i, j, 1, h, d)]);
        s[j] = dot / sqrt((double)a->dim);
        if (s[j] > most || isnan(s[j])) most = s[j];
    }
    for (int j = 0; j < seen(a, t); j++) sum += exp(s[j] - most);
    return most + log(sum);
}

void REF(attend_forward)(const tt_attend_args *a)
{
    double *s = a->scratch;

    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < a->heads; h++)
            for (int t = 0; t < a->t; t++) {
                double lse = scores(a, i, h, t, s);
                if (a->lse) a->lse[((int64_t)i * a->heads + h) * a->t + t] = (float)lse;
                for (int d = 0; d < a->dim; d++) {
                    double sum = 0;
                    for (int j = 0; j < seen(a, t); j++)
                        sum += exp(s[j] - lse) * get(a->x[at(a, i, j, 2, h, d)]);
                    set(&a->y[at_y(a, i, t, h, d)], sum);
                }
            }
}

/* What one query has to say of it, and of the keys and values it sees: added to dq, dk, dv of the
 * head, (t, dim) each. */
static void query_back(const tt_attend_args *a, int i, int h, int t, double *s, double *sums)
{
    const int64_t part = (int64_t)a->t * a->dim;
    double *ds = s + a->t, lse = scores(a, i, h, t, s), mean = 0, scale = 1 / sqrt((double)a->dim);

    for (int j = 0; j < seen(a, t); j++) {
        ds[j] = 0;
        for (int d = 0; d < a->dim; d++)
            ds[j] += get(a->dy[at_y(a, i, t, h, d)]) * get(a->x[at(a, i, j, 2, h, d)]);
        s[j] = exp(s[j] - lse);
        mean += s[j] * ds[j];
    }
    for (int j = 0; j < seen(a, t); j++)
        for (int d = 0; d < a->dim; d++) {
            double g = s[j] * (ds[j] - mean) * scale;
            sums[t * a->dim + d] += g * get(a->x[at(a, i, j, 1, h, d)]);
            sums[part + j * a->dim + d] += g * get(a->x[at(a, i, t, 0, h, d)]);
            sums[2 * part + j * a->dim + d] += s[j] * get(a->dy[at_y(a, i, t, h, d)]);
        }
}

void REF(attend_backward)(const tt_attend_args *a)
{
    const int64_t part = (int64_t)a->t * a->dim;
    double *s = a->scratch, *sums = s + 2 * a->t;

    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < a->heads; h++) {
            memset(sums, 0, 3 * (size_t)part * sizeof *sums);
            for (int t = 0; t < a->t; t++) query_back(a, i, h, t, s, sums);
            for (int64_t k = 0; k < 3 * part; k++)
                put(&a->dx[at(a, i, (int)(k % part / a->dim), (int)(k / part), h,
                              (int)(k % a->dim))],
                    sums[k], a->dx_add);
        }
}
