/* Attention, as it is written down. */
#include <math.h>
#include <string.h>

#include "tensor/ref/ref.h"

size_t tt_ref_attend_scratch(const tt_attend_args *a)
{
    return 2 * (size_t)a->t * sizeof(double);
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
            dot += (double)a->x[at(a, i, t, 0, h, d)] * a->x[at(a, i, j, 1, h, d)];
        s[j] = dot / sqrt((double)a->dim);
        if (s[j] > most || isnan(s[j])) most = s[j];
    }
    for (int j = 0; j < seen(a, t); j++) sum += exp(s[j] - most);
    return most + log(sum);
}

void tt_ref_attend_forward(const tt_attend_args *a)
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
                        sum += exp(s[j] - lse) * a->x[at(a, i, j, 2, h, d)];
                    a->y[at_y(a, i, t, h, d)] = (float)sum;
                }
            }
}

void tt_ref_attend_backward(const tt_attend_args *a)
{
    double *s = a->scratch, *ds = s + a->t, scale = 1 / sqrt((double)a->dim);

    if (!a->dx_add) memset(a->dx, 0, (size_t)a->n * a->t * 3 * a->heads * a->dim * sizeof *a->dx);
    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < a->heads; h++)
            for (int t = 0; t < a->t; t++) {
                double lse = scores(a, i, h, t, s), mean = 0;
                for (int j = 0; j < seen(a, t); j++) {
                    ds[j] = 0;
                    for (int d = 0; d < a->dim; d++)
                        ds[j] += (double)a->dy[at_y(a, i, t, h, d)] * a->x[at(a, i, j, 2, h, d)];
                    s[j] = exp(s[j] - lse);
                    mean += s[j] * ds[j];
                }
                for (int j = 0; j < seen(a, t); j++)
                    for (int d = 0; d < a->dim; d++) {
                        double g = s[j] * (ds[j] - mean) * scale;
                        a->dx[at(a, i, t, 0, h, d)] += (float)(g * a->x[at(a, i, j, 1, h, d)]);
                        a->dx[at(a, i, j, 1, h, d)] += (float)(g * a->x[at(a, i, t, 0, h, d)]);
                        a->dx[at(a, i, j, 2, h, d)] += (float)(s[j] * a->dy[at_y(a, i, t, h, d)]);
                    }
            }
}
