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

/* Counts the row among those of its class, and of the class of the first of the largest. */
static void note_seen(const tt_loss_args *a, const float *x, int64_t label, bool right)
{
    int64_t d = a->d, most = 0;

    a->seen[label]++;
    if (right) { /* what is before it, and nothing is, would be the largest, or not a number */
        a->seen[d + label]++;
        a->seen[2 * d + label]++;
        return;
    }
    for (int64_t k = 0; k < d; k++) {
        if (isnan(x[k])) return;
        if (x[k] > x[most]) most = k;
    }
    a->seen[d + most]++;
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
        if (a->d == 1) a->rows++, a->correct += !isnan(*x) && (*x > 0) == (*target > 0.5f);
        break;
    }
    if (a->label && a->kind != TT_LOSS_BCE) {
        a->rows++;
        int64_t before = place_of(x, a->d, label);
        a->correct += before == 0;
        a->top5 += before < 5;
        if (a->seen) note_seen(a, x, label, before == 0);
        if (a->class_weight) weight = a->class_weight[label];
    }
    a->weight += weight;
}

/* ---- Softmax of few classes, as of pixels: VW rows at once, a vector for each class ---- */

enum { FEW = 16 }; /* classes at most */

static ALWAYS_INLINE vf column(const float *x, int64_t step)
{
    vf v;
    for (int i = 0; i < VW; i++) v[i] = x[i * step];
    return v;
}

/* Which rows have the label at the first place, or among the first five. */
static ALWAYS_INLINE void few_places(tt_loss_args *a, const vf *x, vf own, vi label, vi counts)
{
    vi before = {0};

    for (int k = 0; k < a->d; k++) {
        vi first = (~(x[k] <= own) & (label != k)) | ((x[k] == own) & (label > k));
        before -= first;
    }
    for (int i = 0; i < VW; i++) {
        a->rows -= counts[i];
        a->correct -= counts[i] & (before[i] == 0 ? -1 : 0);
        a->top5 -= counts[i] & (before[i] < 5 ? -1 : 0);
    }
}

static void few_rows(tt_loss_args *a, int row)
{
    const int d = (int)a->d;
    const float *from = a->x + (int64_t)row * d, even = a->smoothing / (float)d;
    vf x[FEW], e[FEW], most = vset1(-INFINITY), sum = vzero(), dot = vzero(), own, share;
    float rest = 0;
    vi label, counts;

    for (int k = 0; k < d; k++) {
        x[k] = column(from + k, d);
        most = vmax(x[k], most);
    }
    for (int i = 0; i < VW; i++) {
        int32_t l = a->label[row + i];
        label[i] = l;
        TT_ASSERT(l < d);
        own[i] = l < 0 ? 0 : from[i * d + l];
        share[i] = l < 0 ? 0 : a->class_weight ? a->class_weight[l] : 1;
        a->weight += (double)share[i];
    }
    counts = label >= 0;
    for (int k = 0; k < d; k++) {
        float q = even * (a->class_weight ? a->class_weight[k] : 1);
        vf v = x[k] - most;
        e[k] = vexp(v);
        sum += e[k];
        rest += q;
        if (q != 0) dot += q * v; /* 0 log 0 is 0 */
    }
    share *= 1 - a->smoothing;
    vf log_sum = vlog(sum), loss = vpick(share == 0, vzero(), share * (log_sum + (most - own)));
    if (even > 0) loss += rest * log_sum - dot;
    for (int i = 0; i < VW; i++) a->loss += counts[i] ? (double)loss[i] : 0;
    few_places(a, x, own, label, counts);
    for (int i = 0; i < VW && a->seen; i++)
        if (label[i] >= 0)
            note_seen(a, from + i * d, label[i], place_of(from + i * d, d, label[i]) == 0);
    vf scale = (share + rest) / sum;
    for (int k = 0; k < d && a->dx; k++) {
        float q = even * (a->class_weight ? a->class_weight[k] : 1), *to = a->dx;
        vf g = e[k] * scale - q - (vf)((vi)share & (label == k));
        g = (vf)((vi)g & counts);
        for (int i = 0; i < VW; i++) to[(int64_t)(row + i) * d + k] = g[i];
    }
}

void TT_SIMD(loss)(tt_loss_args *a)
{
    const bool few = a->kind == TT_LOSS_SOFTMAX && a->label && a->d <= FEW;
    int i = 0;

    a->loss = a->weight = 0;
    a->correct = a->top5 = a->rows = 0;
    TT_ASSERT(a->d > 0 && (a->label || a->target));
    TT_ASSERT(!a->label || a->kind != TT_LOSS_MSE);
    TT_ASSERT(!a->label || a->kind != TT_LOSS_BCE || a->d == 1);
    TT_ASSERT(a->label || a->kind != TT_LOSS_NLL);
    for (; few && i + VW <= a->n; i += VW) few_rows(a, i);
    for (; i < a->n; i++) row_loss(a, i);
}
