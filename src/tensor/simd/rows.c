/* Layer normalisation and softmax: over the middle of outer x d x inner.
 *
 * A line is what one vector's worth of lanes reduces over. With inner == 1 the d elements of a row
 * lie side by side: a line is one row, cut into vectors, and reductions end across the vector.
 * Otherwise (LANES, PLAIN with pixels behind) a line is up to VW neighbouring rows, and each lane
 * reduces alone. */
#include "tensor/simd/table.h"
#include "tensor/simd/vmath.h"

enum { BLOCK = 64 }; /* vectors added up before the sum moves on: long rows lose nothing */

typedef struct line {
    int64_t at;    /* first element                                 */
    int64_t step;  /* from one vector to the next                   */
    int64_t count; /* vectors                                       */
    int width;     /* of each vector but the last ...               */
    int last;      /* ... and of that                               */
    bool across;   /* inner == 1                                    */
    int64_t stat;  /* where mean and rstd of the line lie           */
} line;

static ALWAYS_INLINE int width_at(const line *l, int64_t k)
{
    return k == l->count - 1 ? l->last : l->width;
}

static ALWAYS_INLINE vf line_load(const line *l, const tt_act *x, int64_t k)
{
    return vload_n(x + l->at + k * l->step, width_at(l, k));
}

static ALWAYS_INLINE void line_put(const line *l, tt_act *y, int64_t k, vf v, bool add)
{
    vput_n(y + l->at + k * l->step, v, width_at(l, k), add);
}

/* Elements behind the end of a row must not count in sums. */
static ALWAYS_INLINE vf line_only(const line *l, int64_t k, vf v)
{
    if (!l->across || k < l->count - 1) return v;
    return (vf)((vi)v & vfirst(l->last));
}

static ALWAYS_INLINE vf line_sum(const line *l, vf v)
{
    return l->across ? vset1(vsum(v)) : v;
}

/* gamma or beta, (d): one for each element of the vector, or one for all. */
static ALWAYS_INLINE vf line_param(const line *l, const float *p, int64_t k, float none)
{
    if (!p) return vset1(none);
    return l->across ? vload_n(p + k * VW, width_at(l, k)) : vset1(p[k]);
}

static ALWAYS_INLINE void stat_store(const line *l, float *p, vf v)
{
    if (!p) return;
    if (l->across)
        p[l->stat] = v[0];
    else
        vstore_n(p + l->stat, v, l->width);
}

static ALWAYS_INLINE vf stat_load(const line *l, const float *p)
{
    return l->across ? vset1(p[l->stat]) : vload_n(p + l->stat, l->width);
}

typedef void line_fn(const tt_rows_args *a, const line *l);

/* `fn` is inlined twice, once for each kind of line, so that `across` is a constant in it. */
static ALWAYS_INLINE void each_line(const tt_rows_args *a, line_fn *fn)
{
    if (a->inner == 1) {
        int64_t count = (a->d + VW - 1) / VW;
        for (int64_t o = 0; o < a->outer; o++) {
            line l = {.at = o * a->d,
                      .step = VW,
                      .count = count,
                      .width = VW,
                      .last = (int)(a->d - (count - 1) * VW),
                      .across = true,
                      .stat = o};
            fn(a, &l);
        }
        return;
    }
    for (int64_t o = 0; o < a->outer; o++)
        for (int64_t i = 0; i < a->inner; i += VW) {
            int width = vtake(i, a->inner);
            line l = {.at = o * a->d * a->inner + i,
                      .step = a->inner,
                      .count = a->d,
                      .width = width,
                      .last = width,
                      .stat = o * a->inner + i};
            fn(a, &l);
        }
}

/* ---- Layer norm ---- */

/* Sum of x - shift, or of its square. */
static ALWAYS_INLINE vf moment(const tt_rows_args *a, const line *l, vf shift, bool square)
{
    vf total = vzero();

    for (int64_t from = 0; from < l->count; from += BLOCK) {
        int64_t to = l->count - from < BLOCK ? l->count : from + BLOCK;
        vf part[4] = {0}; /* additions take longer than loads */
        int64_t k = from;
        for (; k + 4 < to; k += 4)
            for (int i = 0; i < 4; i++) {
                vf v = line_load(l, a->x, k + i) - shift;
                part[i] += square ? v * v : v;
            }
        for (; k < to; k++) {
            vf v = line_only(l, k, line_load(l, a->x, k) - shift);
            part[0] += square ? v * v : v;
        }
        total += (part[0] + part[1]) + (part[2] + part[3]);
    }
    return line_sum(l, total);
}

static vf rsqrt_of(vf v)
{
    for (int i = 0; i < VW; i++) v[i] = 1 / sqrtf(v[i]);
    return v;
}

static ALWAYS_INLINE void layernorm_line(const tt_rows_args *a, const line *l)
{
    const float share = 1 / (float)a->d;
    vf mean = moment(a, l, vzero(), false) * share;
    vf rstd = rsqrt_of(moment(a, l, mean, true) * share + a->eps);

    for (int64_t k = 0; k < l->count; k++) {
        vf v = (line_load(l, a->x, k) - mean) * rstd;
        v = v * line_param(l, a->gamma, k, 1) + line_param(l, a->beta, k, 0);
        line_put(l, a->y, k, v, false);
    }
    stat_store(l, a->mean, mean);
    stat_store(l, a->rstd, rstd);
}

void TT_SIMD(layernorm_forward)(const tt_rows_args *a)
{
    each_line(a, layernorm_line);
}

static ALWAYS_INLINE void layernorm_line_dx(const tt_rows_args *a, const line *l)
{
    vf mean = stat_load(l, a->mean), rstd = stat_load(l, a->rstd), sum = vzero(), dot = vzero();
    const float share = 1 / (float)a->d;

    for (int64_t from = 0; from < l->count; from += BLOCK) {
        int64_t to = l->count - from < BLOCK ? l->count : from + BLOCK;
        vf s = vzero(), d = vzero();
        for (int64_t k = from; k < to; k++) { /* dy reads as 0 behind the end */
            vf g = line_load(l, a->dy, k) * line_param(l, a->gamma, k, 1);
            s += g;
            d += g * (line_load(l, a->x, k) - mean);
        }
        sum += s;
        dot += d;
    }
    sum = line_sum(l, sum) * share;
    dot = line_sum(l, dot) * rstd * rstd * share;
    for (int64_t k = 0; k < l->count; k++) {
        vf g = line_load(l, a->dy, k) * line_param(l, a->gamma, k, 1);
        vf v = g - sum - (line_load(l, a->x, k) - mean) * dot;
        line_put(l, a->dx, k, v * rstd, a->dx_add);
    }
}

static ALWAYS_INLINE void layernorm_line_dw(const tt_rows_args *a, const line *l)
{
    vf mean = stat_load(l, a->mean), rstd = stat_load(l, a->rstd);

    for (int64_t k = 0; k < l->count; k++) {
        vf dy = line_load(l, a->dy, k), dot = dy * (line_load(l, a->x, k) - mean) * rstd;
        if (l->across) {
            int n = width_at(l, k);
            if (a->dgamma) vput_n(a->dgamma + k * VW, dot, n, true);
            if (a->dbeta) vput_n(a->dbeta + k * VW, dy, n, true);
        } else { /* lanes behind the width read as 0 */
            if (a->dgamma) a->dgamma[k] += vsum(dot);
            if (a->dbeta) a->dbeta[k] += vsum(dy);
        }
    }
}

void TT_SIMD(layernorm_backward)(const tt_rows_args *a)
{
    if (!a->dw_add) {
        if (a->dgamma) memset(a->dgamma, 0, (size_t)a->d * sizeof *a->dgamma);
        if (a->dbeta) memset(a->dbeta, 0, (size_t)a->d * sizeof *a->dbeta);
    }
    if (a->dgamma || a->dbeta) each_line(a, layernorm_line_dw);
    if (a->dx) each_line(a, layernorm_line_dx);
}

/* ---- Softmax ---- */

/* The largest element; of all lanes if the line runs across them. */
static ALWAYS_INLINE vf largest(const tt_rows_args *a, const line *l)
{
    vf most = vset1(-INFINITY);

    for (int64_t k = 0; k < l->count; k++) {
        vf v = line_load(l, a->x, k);
        if (l->across && k == l->count - 1) v = vpick(vfirst(l->last), v, most);
        most = vmax(v, most);
    }
    if (l->across) {
        float m = most[0];
        for (int i = 1; i < VW; i++) m = most[i] > m ? most[i] : m;
        most = vset1(m);
    }
    return most;
}

static ALWAYS_INLINE vf exp_sum(const tt_rows_args *a, const line *l, vf most, bool store)
{
    vf total = vzero();

    for (int64_t from = 0; from < l->count; from += BLOCK) {
        int64_t to = l->count - from < BLOCK ? l->count : from + BLOCK;
        vf part = vzero();
        for (int64_t k = from; k < to; k++) {
            vf e = vexp(line_load(l, a->x, k) - most);
            if (store) line_put(l, a->y, k, e, false);
            part += line_only(l, k, e);
        }
        total += part;
    }
    return line_sum(l, total);
}

static ALWAYS_INLINE void softmax_line(const tt_rows_args *a, const line *l)
{
    const bool kept = sizeof(tt_act) == sizeof(float); /* else they would be rounded twice */
    vf most = largest(a, l), scale = 1.0f / exp_sum(a, l, most, kept);

    for (int64_t k = 0; k < l->count; k++) {
        vf e = kept ? line_load(l, a->y, k) : vexp(line_load(l, a->x, k) - most);
        line_put(l, a->y, k, e * scale, false);
    }
}

static ALWAYS_INLINE void log_softmax_line(const tt_rows_args *a, const line *l)
{
    vf most = largest(a, l), sum = exp_sum(a, l, most, false);

    for (int i = 0; i < (l->across ? 1 : VW); i++) sum[i] = logf(sum[i]);
    if (l->across) sum = vset1(sum[0]);
    for (int64_t k = 0; k < l->count; k++)
        line_put(l, a->y, k, line_load(l, a->x, k) - most - sum, false);
}

void TT_SIMD(softmax_forward)(const tt_rows_args *a, bool log)
{
    if (log)
        each_line(a, log_softmax_line);
    else
        each_line(a, softmax_line);
}

/* Sum of dy, or of dy * y. */
static ALWAYS_INLINE vf dy_sum(const tt_rows_args *a, const line *l, bool with_y)
{
    vf total = vzero();

    for (int64_t from = 0; from < l->count; from += BLOCK) {
        int64_t to = l->count - from < BLOCK ? l->count : from + BLOCK;
        vf part = vzero();
        for (int64_t k = from; k < to; k++) {
            vf dy = line_load(l, a->dy, k);
            part += with_y ? dy * line_load(l, a->x, k) : dy;
        }
        total += part;
    }
    return line_sum(l, total);
}

static ALWAYS_INLINE void softmax_line_back(const tt_rows_args *a, const line *l)
{
    vf dot = dy_sum(a, l, true);

    for (int64_t k = 0; k < l->count; k++) {
        vf y = line_load(l, a->x, k);
        line_put(l, a->dx, k, y * (line_load(l, a->dy, k) - dot), a->dx_add);
    }
}

static ALWAYS_INLINE void log_softmax_line_back(const tt_rows_args *a, const line *l)
{
    vf sum = dy_sum(a, l, false);

    for (int64_t k = 0; k < l->count; k++) {
        vf y = line_load(l, a->x, k);
        line_put(l, a->dx, k, line_load(l, a->dy, k) - vexp(y) * sum, a->dx_add);
    }
}

void TT_SIMD(softmax_backward)(const tt_rows_args *a, bool log)
{
    if (log)
        each_line(a, log_softmax_line_back);
    else
        each_line(a, softmax_line_back);
}
