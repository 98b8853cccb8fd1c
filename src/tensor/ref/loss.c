/* Losses: sums over rows, and what they weigh; the mean is the caller's. As torch.nn does it. */
#include <math.h>
#include <string.h>

#include "tensor/ref/ref.h"

/* How many classes come before `label` when the row is sorted, the largest first. Of equal ones the
 * first comes first; what is not a number comes before every number, so a broken row is never
 * correct. */
static int64_t place_of(const float *x, int64_t d, int64_t label)
{
    int64_t before = 0;

    for (int64_t k = 0; k < d; k++)
        if (k != label) before += !(x[k] <= x[label]) || (k < label && x[k] == x[label]);
    return before;
}

/* The class a row is taken for: that of the first of the largest; -1: one is not a number. */
static int64_t taken_for(const float *x, int64_t d)
{
    int64_t most = 0;

    for (int64_t k = 0; k < d; k++) {
        if (isnan(x[k])) return -1;
        if (x[k] > x[most]) most = k;
    }
    return most;
}

static void classify(tt_loss_args *a, const float *x, int64_t label)
{
    int64_t before = place_of(x, a->d, label), taken = label;

    a->correct += before == 0;
    a->top5 += before < 5;
    if (!a->seen) return;
    if (before) taken = taken_for(x, a->d);
    a->seen[label]++;
    if (taken >= 0) a->seen[a->d + taken]++;
    if (taken == label) a->seen[2 * a->d + label]++;
}

/* The loss is -sum q log p. A label gives q = weight of the label, spread by smoothing; a target is
 * q. */
static double softmax_q(const tt_loss_args *a, int row, int64_t k)
{
    double own = a->class_weight ? a->class_weight[k] : 1, even = a->smoothing / (double)a->d;

    if (a->label) return own * ((1 - a->smoothing) * (k == a->label[row]) + even);
    return own * ((1 - a->smoothing) * a->target[row * a->d + k] + even);
}

static double softmax_row(const tt_loss_args *a, int row, const float *x, float *dx)
{
    double most = -INFINITY, sum = 0, total = 0, loss = 0;

    for (int64_t k = 0; k < a->d; k++) most = fmax(most, x[k]);
    for (int64_t k = 0; k < a->d; k++) sum += exp(x[k] - most);
    for (int64_t k = 0; k < a->d; k++) {
        double q = softmax_q(a, row, k);
        total += q;
        if (q != 0) loss -= q * (x[k] - most - log(sum)); /* 0 log 0 is 0 */
    }
    for (int64_t k = 0; dx && k < a->d; k++)
        dx[k] = (float)(total * exp(x[k] - most) / sum - softmax_q(a, row, k));
    return loss;
}

static double nll_row(const tt_loss_args *a, int64_t label, const float *x, float *dx)
{
    double w = a->class_weight ? a->class_weight[label] : 1;

    if (dx) dx[label] = (float)-w;
    return -w * x[label];
}

static double mse_row(const tt_loss_args *a, const float *target, const float *x, float *dx)
{
    double loss = 0;

    for (int64_t k = 0; k < a->d; k++) {
        double diff = (double)x[k] - target[k];
        loss += diff * diff / (double)a->d;
        if (dx) dx[k] = (float)(2 * diff / (double)a->d);
    }
    return loss;
}

static double bce_row(const tt_loss_args *a, const float *target, const float *x, float *dx)
{
    double loss = 0;

    for (int64_t k = 0; k < a->d; k++) {
        double v = x[k], t = target[k];
        loss += ((v > 0 ? v : 0) - v * t + log1p(exp(-fabs(v)))) / (double)a->d;
        if (dx) dx[k] = (float)((1 / (1 + exp(-v)) - t) / (double)a->d);
    }
    return loss;
}

static void row_loss(tt_loss_args *a, int row)
{
    const float *x = a->x + row * a->d, *target = a->target ? a->target + row * a->d : NULL;
    float *dx = a->dx ? a->dx + row * a->d : NULL, label;
    double weight = 1;

    if (dx) memset(dx, 0, (size_t)a->d * sizeof *dx);
    if (a->label ? a->label[row] < 0 : isnan(*target)) return;
    TT_ASSERT(!a->label || a->kind == TT_LOSS_BCE || a->label[row] < a->d);
    switch (a->kind) {
    case TT_LOSS_SOFTMAX:
        a->loss += softmax_row(a, row, x, dx);
        break;
    case TT_LOSS_NLL:
        a->loss += nll_row(a, a->label[row], x, dx);
        break;
    case TT_LOSS_MSE:
        a->loss += mse_row(a, target, x, dx);
        break;
    case TT_LOSS_BCE:
        if (a->label) label = (float)a->label[row], target = &label;
        a->loss += bce_row(a, target, x, dx);
        if (a->d == 1) a->rows++, a->correct += !isnan(*x) && (*x > 0) == (*target > 0.5f);
        break;
    }
    if (a->label && a->kind != TT_LOSS_BCE) {
        a->rows++;
        classify(a, x, a->label[row]);
        if (a->class_weight) weight = a->class_weight[a->label[row]];
    }
    a->weight += weight;
}

void REF(loss)(tt_loss_args *a)
{
    a->loss = a->weight = 0;
    a->correct = a->top5 = a->rows = 0;
    TT_ASSERT(a->d > 0 && (a->label || a->target));
    TT_ASSERT(!a->label || a->kind != TT_LOSS_MSE);
    TT_ASSERT(!a->label || a->kind != TT_LOSS_BCE || a->d == 1);
    TT_ASSERT(a->label || a->kind != TT_LOSS_NLL);
    for (int i = 0; i < a->n; i++) row_loss(a, i);
}
