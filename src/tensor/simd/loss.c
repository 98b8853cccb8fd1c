/* Losses: rows of d numbers, in vectors along the row; sums over rows in double. See ref/loss.c for
 * the definitions. */
#include "tensor/simd/table.h"
#include "tensor/simd/vmath.h"

/* How many classes come before `label`, the largest first; of equal ones the first, and what is not
 * a number before every number. */
static int64_t place_of(const float *x, int64_t d, int64_t label)
{
    vf own = vset1(x[label]);
    vi more = {0};
    int64_t before = 0;

    for (int64_t k = 0; k < d; k += VW) {
        int n = vtake(k, d);
        vf v = vload_n(x + k, n);
        vi earlier = vfirst(k < label ? vtake(k, label) : 0);
        more -= (~(v <= own) | ((v == own) & earlier)) & vfirst(n);
    }
    for (int i = 0; i < VW; i++) before += more[i];
    return before - !(x[label] <= x[label]); /* a label that is not a number has counted itself */
}

/* q of the row's k-th vector: see softmax_row. */
static ALWAYS_INLINE vf softmax_q(const tt_loss_args *a, int row, int64_t k, int n)
{
    vf q = vset1(a->smoothing / (float)a->d);

    if (!a->label) q += vload_n(a->target + row * a->d + k, n) * (1 - a->smoothing);
    if (a->class_weight) q *= vload_n(a->class_weight + k, n);
    return q;
}

/* The loss is -sum q log p. Smoothing and targets give every class a q; a label adds its own. */
static double softmax_row(const tt_loss_args *a, int row, const float *x, float *dx)
{
    int64_t d = a->d, label = a->label ? a->label[row] : 0;
    bool spread = !a->label || a->smoothing > 0;
    vf most = vset1(-INFINITY), sum = vzero(), total = vzero(), dot = vzero();
    float own = a->label ? (1 - a->smoothing) * (a->class_weight ? a->class_weight[label] : 1) : 0;

    for (int64_t k = 0; k < d; k += VW) {
        int n = vtake(k, d);
        most = vmax(vpick(vfirst(n), vload_n(x + k, n), most), most);
    }
    float m = most[0];
    for (int i = 1; i < VW; i++) m = most[i] > m ? most[i] : m;
    for (int64_t k = 0; k < d; k += VW) {
        int n = vtake(k, d);
        vi in = vfirst(n);
        vf v = vload_n(x + k, n) - m, e = vexp(v);
        sum += (vf)((vi)e & in);
        if (dx) vstore_n(dx + k, e, n);
        if (!spread) continue;
        vf q = (vf)((vi)softmax_q(a, row, k, n) & in);
        total += q;
        dot += vpick(q == 0, vzero(), q * v); /* 0 log 0 is 0 */
    }
    double log_sum = log(vsum(sum)), all = own, loss = 0;
    if (own != 0) loss = own * (log_sum + m - x[label]);
    if (spread) {
        double rest = vsum(total);
        all += rest;
        loss += rest * log_sum - vsum(dot);
    }
    if (!dx) return loss;
    float scale = (float)(all / vsum(sum));
    for (int64_t k = 0; k < d; k += VW) {
        int n = vtake(k, d);
        vf g = vload_n(dx + k, n) * scale;
        vstore_n(dx + k, spread ? g - softmax_q(a, row, k, n) : g, n);
    }
    dx[label] -= own;
    return loss;
}

static double nll_row(const tt_loss_args *a, int64_t label, const float *x, float *dx)
{
    float w = a->class_weight ? a->class_weight[label] : 1;

    if (dx) {
        memset(dx, 0, (size_t)a->d * sizeof *dx);
        dx[label] = -w;
    }
    return -(double)w * x[label];
}

/* MSE and BCE: the mean over the row of a function of one element and its target. */
static ALWAYS_INLINE double mean_row(const tt_loss_args *a, const float *target, const float *x,
                                     float *dx, bool bce)
{
    float share = 1 / (float)a->d;
    double loss = 0;

    for (int64_t k = 0; k < a->d; k += VW) {
        int n = vtake(k, a->d);
        vf v = vload_n(x + k, n), t = vload_n(target + k, n), one, slope;
        if (bce) {
            vf e = vexp(-vabs(v)); /* sigmoid is 1 / (1 + e) or e / (1 + e) */
            one = vrelu(v) - v * t + vlog1p(e);
            slope = vpick(v < 0, e, vset1(1)) / (1.0f + e) - t;
        } else {
            one = (v - t) * (v - t);
            slope = 2 * (v - t);
        }
        loss += vsum((vf)((vi)one & vfirst(n)));
        if (dx) vstore_n(dx + k, slope * share, n);
    }
    return loss * share;
}

static void row_loss(tt_loss_args *a, int row)
{
    const float *x = a->x + row * a->d, *target = a->target ? a->target + row * a->d : NULL;
    float *dx = a->dx ? a->dx + row * a->d : NULL, asked;
    int64_t label = a->label ? a->label[row] : 0;
    double weight = 1;

    if (a->label ? label < 0 : isnan(*target)) {
        if (dx) memset(dx, 0, (size_t)a->d * sizeof *dx);
        return;
    }
    TT_ASSERT(a->kind == TT_LOSS_BCE || label < a->d);
    switch (a->kind) {
    case TT_LOSS_SOFTMAX:
        a->loss += softmax_row(a, row, x, dx);
        break;
    case TT_LOSS_NLL:
        a->loss += nll_row(a, label, x, dx);
        break;
    case TT_LOSS_MSE:
        a->loss += mean_row(a, target, x, dx, false);
        break;
    case TT_LOSS_BCE:
        if (a->label) asked = (float)label, target = &asked;
        a->loss += mean_row(a, target, x, dx, true);
        if (a->d == 1) a->rows++, a->correct += (*x > 0) == (*target > 0.5f);
        break;
    }
    if (a->label && a->kind != TT_LOSS_BCE) {
        a->rows++;
        int64_t before = place_of(x, a->d, label);
        a->correct += before == 0;
        a->top5 += before < 5;
        if (a->class_weight) weight = a->class_weight[label];
    }
    a->weight += weight;
}

void TT_SIMD(loss)(tt_loss_args *a)
{
    a->loss = a->weight = 0;
    a->correct = a->top5 = a->rows = 0;
    TT_ASSERT(a->d > 0 && (a->label || a->target));
    TT_ASSERT(!a->label || a->kind != TT_LOSS_MSE);
    TT_ASSERT(!a->label || a->kind != TT_LOSS_BCE || a->d == 1);
    TT_ASSERT(a->label || a->kind != TT_LOSS_NLL);
    for (int i = 0; i < a->n; i++) row_loss(a, i);
}
