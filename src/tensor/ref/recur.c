/* Recurrent layers, as they are written down: one sample and one position after the other. */
#include <math.h>
#include <string.h>

#include "tensor/ref/ref.h"

/* What was saved, of all samples: gates (n, t, gates, h); cells of an LSTM, or what r scales in a
 * GRU (n, t, h); states (n, t, h). On the way back gradients take their place: those of the gates'
 * sums, and of what r scales. */
typedef struct parts {
    int64_t wide; /* gates * h */
    float *gate, *extra;
    tt_act *state;
} parts;

static parts parts_of(const tt_recur_args *a)
{
    int64_t rows = (int64_t)a->n * a->t;
    parts p = {.wide = (int64_t)tt_recur_gates(a->kind) * a->h, .gate = a->saved};

    p.extra = p.gate + rows * p.wide;
    p.state = a->last ? (tt_act *)(p.extra + rows * a->h) : a->y;
    return p;
}

size_t REF(recur_packed)(const tt_recur_args *a)
{
    (void)a;
    return 0;
}

void REF(recur_pack)(const tt_recur_args *a, tt_act *packed)
{
    (void)a, (void)packed;
}

size_t REF(recur_scratch)(const tt_recur_args *a)
{
    return 2 * (size_t)a->h * sizeof(double);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Element k of w x + b; x is NULL for a state of zeros. */
static double affine(const float *w, const float *b, const tt_act *x, int64_t n, int64_t k)
{
    double sum = b[k];

    for (int64_t i = 0; i < n && x; i++) sum += weight(w[k * n + i]) * get(x[i]);
    return sum;
}

/* ---- forward ---- */

static void lstm_step(const tt_recur_args *a, const parts *p, int64_t row, bool first)
{
    const tt_act *was = first ? NULL : p->state + (row - 1) * a->h;
    float *gate = p->gate + row * p->wide;

    for (int64_t k = 0; k < p->wide; k++) {
        double sum = affine(a->w_ih, a->b_ih, a->x + row * a->d, a->d, k) +
                     affine(a->w_hh, a->b_hh, was, a->h, k);
        gate[k] = (float)(k / a->h == 2 ? tanh(sum) : sigmoid(sum));
    }
    for (int64_t k = 0; k < a->h; k++) {
        double i = gate[k], f = gate[a->h + k], g = gate[2 * a->h + k], o = gate[3 * a->h + k];
        float *c = p->extra + row * a->h + k;
        *c = (float)(i * g + (first ? 0 : f * c[-a->h]));
        set(&p->state[row * a->h + k], o * tanh(*c));
    }
}

static void gru_step(const tt_recur_args *a, const parts *p, int64_t row, bool first)
{
    const tt_act *was = first ? NULL : p->state + (row - 1) * a->h;
    float *gate = p->gate + row * p->wide;

    for (int64_t k = 0; k < p->wide; k++) {
        double in = affine(a->w_ih, a->b_ih, a->x + row * a->d, a->d, k);
        double q = affine(a->w_hh, a->b_hh, was, a->h, k);
        if (k < 2 * a->h) {
            gate[k] = (float)sigmoid(in + q);
        } else {
            gate[k] = (float)tanh(in + gate[k - 2 * a->h] * q);
            p->extra[row * a->h + k - 2 * a->h] = (float)q;
        }
    }
    for (int64_t k = 0; k < a->h; k++) {
        double z = gate[a->h + k], n = gate[2 * a->h + k];
        set(&p->state[row * a->h + k], (1 - z) * n + (was ? z * get(was[k]) : 0));
    }
}

void REF(recur_forward)(const tt_recur_args *a)
{
    parts p = parts_of(a);

    for (int64_t i = 0; i < a->n; i++) {
        for (int64_t t = 0; t < a->t; t++)
            (a->kind == TT_LSTM ? lstm_step : gru_step)(a, &p, i * a->t + t, !t);
        for (int64_t k = 0; k < a->h && a->last; k++)
            a->y[i * a->h + k] = p.state[((i + 1) * a->t - 1) * a->h + k];
    }
}

/* ---- backward: dh and dc come in as what the position behind has to say ---- */

static void lstm_slope(const tt_recur_args *a, const parts *p, int64_t row, bool first, double *dh,
                       double *dc)
{
    float *gate = p->gate + row * p->wide;

    for (int64_t k = 0; k < a->h; k++) {
        float *at[4] = {gate + k, gate + a->h + k, gate + 2 * a->h + k, gate + 3 * a->h + k};
        double i = *at[0], f = *at[1], g = *at[2], o = *at[3];
        const float *c = p->extra + row * a->h + k;
        double out = tanh(*c), d = dc[k] + dh[k] * o * (1 - out * out);
        *at[0] = (float)(d * g * i * (1 - i));
        *at[1] = (float)(first ? 0 : d * c[-a->h] * f * (1 - f));
        *at[2] = (float)(d * i * (1 - g * g));
        *at[3] = (float)(dh[k] * out * o * (1 - o));
        dc[k] = d * f;
        dh[k] = 0;
    }
}

static void gru_slope(const tt_recur_args *a, const parts *p, int64_t row, bool first, double *dh,
                      double *dc)
{
    float *gate = p->gate + row * p->wide;

    (void)dc;
    for (int64_t k = 0; k < a->h; k++) {
        float *at[3] = {gate + k, gate + a->h + k, gate + 2 * a->h + k};
        double r = *at[0], z = *at[1], n = *at[2];
        float *q = p->extra + row * a->h + k;
        double was = first ? 0 : get(p->state[(row - 1) * a->h + k]);
        double d = dh[k] * (1 - z) * (1 - n * n);
        *at[0] = (float)(d * *q * r * (1 - r));
        *at[1] = (float)(dh[k] * (was - n) * z * (1 - z));
        *at[2] = (float)d;
        *q = (float)(d * r);
        dh[k] *= z;
    }
}

/* The gradient of element k of w_hh h + b_hh. */
static float hidden_slope(const tt_recur_args *a, const parts *p, int64_t row, int64_t k)
{
    if (a->kind == TT_GRU && k >= 2 * a->h) return p->extra[row * a->h + k - 2 * a->h];
    return p->gate[row * p->wide + k];
}

static void through_time(const tt_recur_args *a, const parts *p, int64_t i)
{
    double *dh = a->scratch, *dc = dh + a->h;

    memset(dh, 0, 2 * (size_t)a->h * sizeof *dh);
    for (int64_t t = a->t - 1; t >= 0; t--) {
        int64_t row = i * a->t + t;
        const tt_act *dy = a->last ? a->dy + i * a->h : a->dy + row * a->h;
        for (int64_t k = 0; k < a->h && (!a->last || t == a->t - 1); k++) dh[k] += get(dy[k]);
        (a->kind == TT_LSTM ? lstm_slope : gru_slope)(a, p, row, !t, dh, dc);
        for (int64_t k = 0; k < p->wide; k++)
            for (int64_t j = 0; j < a->h; j++)
                dh[j] += hidden_slope(a, p, row, k) * weight(a->w_hh[k * a->h + j]);
    }
}

static void inputs_gradient(const tt_recur_args *a, const parts *p)
{
    for (int64_t row = 0; row < (int64_t)a->n * a->t; row++)
        for (int64_t j = 0; j < a->d; j++) {
            double sum = 0;
            for (int64_t k = 0; k < p->wide; k++)
                sum += p->gate[row * p->wide + k] * weight(a->w_ih[k * a->d + j]);
            put(a->dx + row * a->d + j, sum, a->dx_add);
        }
}

static void weights_gradient(const tt_recur_args *a, const parts *p)
{
    const int64_t rows = (int64_t)a->n * a->t;

    for (int64_t k = 0; k < p->wide; k++) {
        double in = 0, hidden = 0;
        for (int64_t row = 0; row < rows; row++) {
            in += p->gate[row * p->wide + k];
            hidden += hidden_slope(a, p, row, k);
        }
        put_float(a->db_ih + k, in, a->dw_add);
        put_float(a->db_hh + k, hidden, a->dw_add);
        for (int64_t j = 0; j < a->d; j++) {
            double sum = 0;
            for (int64_t row = 0; row < rows; row++)
                sum += p->gate[row * p->wide + k] * get(a->x[row * a->d + j]);
            put_float(a->dw_ih + k * a->d + j, sum, a->dw_add);
        }
        for (int64_t j = 0; j < a->h; j++) {
            double sum = 0;
            for (int64_t row = 0; row < rows; row++)
                if (row % a->t)
                    sum += hidden_slope(a, p, row, k) * get(p->state[(row - 1) * a->h + j]);
            put_float(a->dw_hh + k * a->h + j, sum, a->dw_add);
        }
    }
}

void REF(recur_backward)(const tt_recur_args *a)
{
    parts p = parts_of(a);

    for (int64_t i = 0; i < a->n; i++) through_time(a, &p, i);
    if (a->dx) inputs_gradient(a, &p);
    if (a->dw_ih) weights_gradient(a, &p);
}
