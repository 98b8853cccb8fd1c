/* Rows of tables, and what becomes of a sample's vectors together, as it is written down. */
#include <string.h>

#include "tensor/ref/ref.h"

/* Where in the table the row of id k of a sample begins; -1: it has none. */
static int64_t row_at(const tt_embed_args *a, int i, int64_t k)
{
    int32_t id = a->id[i * a->stride + k];

    return id < 0 ? -1 : ((a->base ? a->base[k] : 0) + id) * a->dim;
}

void REF(embed_forward)(const tt_embed_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t k = 0; k < a->k; k++) {
            int64_t row = row_at(a, i, k);
            tt_act *y = a->y + (i * a->k + k) * a->dim;
            for (int64_t d = 0; d < a->dim; d++) set(&y[d], row < 0 ? 0 : a->w[row + d]);
        }
}

void REF(embed_backward)(const tt_embed_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t k = 0; k < a->k; k++) {
            int64_t row = row_at(a, i, k);
            const tt_act *dy = a->dy + (i * a->k + k) * a->dim;
            for (int64_t d = 0; d < a->dim && row >= 0; d++)
                put_float(&a->dw[row + d], get(dy[d]), true);
        }
}

/* ---- bags ---- */

/* What each of a sample's rows counts. */
static double share_of(const tt_embed_args *a, int i)
{
    int64_t there = 0;

    for (int64_t k = 0; k < a->k; k++) there += row_at(a, i, k) >= 0;
    return a->mean && there ? 1 / (double)there : 1;
}

void REF(bag_forward)(const tt_embed_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t d = 0; d < a->dim; d++) {
            double sum = 0;
            for (int64_t k = 0; k < a->k; k++) {
                int64_t row = row_at(a, i, k);
                if (row >= 0) sum += a->w[row + d];
            }
            set(&a->y[i * a->dim + d], sum * share_of(a, i));
        }
}

void REF(bag_backward)(const tt_embed_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t k = 0; k < a->k; k++) {
            int64_t row = row_at(a, i, k);
            for (int64_t d = 0; d < a->dim && row >= 0; d++)
                put_float(&a->dw[row + d], get(a->dy[i * a->dim + d]) * share_of(a, i), true);
        }
}

/* ---- sums and factorisation machines ---- */

static double sum_over(const tt_fold_args *a, int i, int64_t d)
{
    double sum = 0;

    for (int64_t k = 0; k < a->k; k++) sum += get(a->x[(i * a->k + k) * a->dim + d]);
    return sum;
}

void REF(sum_forward)(const tt_fold_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t d = 0; d < a->dim; d++) set(&a->y[i * a->dim + d], sum_over(a, i, d));
}

void REF(sum_backward)(const tt_fold_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t k = 0; k < a->k; k++)
            for (int64_t d = 0; d < a->dim; d++)
                put(&a->dx[(i * a->k + k) * a->dim + d], get(a->dy[i * a->dim + d]), a->dx_add);
}

/* The dots of all pairs are half of what the square of the sum has above the sum of squares. */
void REF(fm_forward)(const tt_fold_args *a)
{
    for (int i = 0; i < a->n; i++) {
        double y = 0;
        for (int64_t d = 0; d < a->dim; d++) {
            double sum = sum_over(a, i, d);
            y += sum * sum;
            for (int64_t k = 0; k < a->k; k++) {
                double v = get(a->x[(i * a->k + k) * a->dim + d]);
                y -= v * v;
            }
        }
        set(&a->y[i], y / 2);
    }
}

void REF(fm_backward)(const tt_fold_args *a)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t d = 0; d < a->dim; d++) {
            double sum = sum_over(a, i, d);
            for (int64_t k = 0; k < a->k; k++) {
                int64_t at = (i * a->k + k) * a->dim + d;
                put(&a->dx[at], get(a->dy[i]) * (sum - get(a->x[at])), a->dx_add);
            }
        }
}

/* ---- interaction ---- */

size_t REF(interact_scratch)(const tt_interact_args *a)
{
    return (size_t)a->k * (sizeof(tt_act *) + sizeof(tt_act *) + sizeof(bool));
}

/* The vectors of a sample, and where their gradients go. */
typedef struct vectors {
    const tt_act **x;
    tt_act **dx;
    bool *add;
} vectors;

static vectors vectors_of(const tt_interact_args *a, int i)
{
    vectors v;
    int64_t at = 0;

    v.x = a->scratch;
    v.dx = (tt_act **)(v.x + a->k);
    v.add = (bool *)(v.dx + a->k);
    for (int p = 0; p < a->parts; p++)
        for (int64_t c = 0; c < a->count[p]; c++, at++) {
            int64_t from = (i * a->count[p] + c) * a->dim;
            v.x[at] = a->x[p] + from;
            v.dx[at] = a->dx[p] ? a->dx[p] + from : NULL;
            v.add[at] = a->dx_add[p];
        }
    return v;
}

void REF(interact_forward)(const tt_interact_args *a)
{
    int64_t out = a->dim + a->k * (a->k - 1) / 2;

    for (int i = 0; i < a->n; i++) {
        vectors v = vectors_of(a, i);
        tt_act *y = a->y + i * out;
        memcpy(y, v.x[0], (size_t)a->dim * sizeof *y);
        y += a->dim;
        for (int64_t r = 1; r < a->k; r++)
            for (int64_t c = 0; c < r; c++) {
                double dot = 0;
                for (int64_t d = 0; d < a->dim; d++) dot += get(v.x[r][d]) * get(v.x[c][d]);
                set(y++, dot);
            }
    }
}

/* Vectors in their order: two parts may be the same tensor, of which the second adds. */
void REF(interact_backward)(const tt_interact_args *a)
{
    int64_t out = a->dim + a->k * (a->k - 1) / 2;

    for (int i = 0; i < a->n; i++) {
        vectors v = vectors_of(a, i);
        const tt_act *first = a->dy + i * out, *dots = first + a->dim;
        for (int64_t r = 0; r < a->k; r++)
            for (int64_t d = 0; d < a->dim && v.dx[r]; d++) {
                double sum = r ? 0 : get(first[d]);
                for (int64_t c = 0; c < a->k; c++) {
                    int64_t high = r > c ? r : c, low = r > c ? c : r;
                    if (r != c) sum += get(dots[high * (high - 1) / 2 + low]) * get(v.x[c][d]);
                }
                put(&v.dx[r][d], sum, v.add[r]);
            }
    }
}
