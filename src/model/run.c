/* run: makes the calls of a compiled model, and stops where something must cross to other runs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

void tt_run_begin(tt_run *r, tt_pass pass, const tt_batch *in, float *g, bool add, uint64_t seed)
{
    TT_ASSERT(in->n >= 0 && in->n <= r->most && (pass != TT_PASS_TRAIN || (r->train && g)));
    r->pass = pass;
    r->in = *in;
    r->grad = g;
    r->add = add;
    r->seed = seed;
    r->time = r->phase = 0;
    memset(&r->result, 0, sizeof r->result);
    r->result.samples = in->n;
    if (r->seen) memset(r->seen, 0, 3 * (size_t)tt_model_pixel_classes(r->m) * sizeof *r->seen);
    for (int i = 0; i < r->m->call_count && pass == TT_PASS_TRAIN && !add && in->n; i++) {
        const call *c = &r->m->calls[i];
        if (!c->train_params || c->backward) continue;
        /* No loss hears of it, so nobody will write its gradient. */
        for (int k = c->own; k < c->param_count; k++) {
            const tt_param *p = &r->m->g.params[c->param[k]];
            if (p->role != TT_STAT) memset(g + p->at, 0, (size_t)p->n * sizeof *g);
        }
    }
}

/* Has it parameters of its own, whose gradient is final after it? */
static bool yields(const call *c)
{
    return c->train_params && c->param_count > c->own;
}

static tt_span span_of(const tt_model *m, const call *c)
{
    const tt_param *first = &m->g.params[c->param[c->own]],
                   *last = &m->g.params[c->param[c->param_count - 1]];
    return (tt_span){first->at, last->at + last->n - first->at};
}

int tt_model_grads(const tt_model *m, tt_span *out, int most)
{
    int n = 0;

    for (int i = m->call_count - 1; i >= 0; i--)
        if (m->calls[i].backward && yields(&m->calls[i])) {
            if (n < most) out[n] = span_of(m, &m->calls[i]);
            n++;
        }
    return n;
}

/* With no samples there is nothing to compute, but others may wait for our sums. */
static bool answer(const tt_run *r, const call *c, int phase)
{
    if (c->kind != CALL_NORM || phase || !norm_uses_batch(r, c) || !r->m->sync_norm) return false;
    memset(at_buffer(r, c->saved), 0, (size_t)(2 * c->c + 1) * sizeof(double));
    return true;
}

/* ---- Numbers that are none ---- */

static bool sample_is_finite(const tt_run *r, int at, const void *x, int i)
{
    const tensor *t = &r->m->tensors[at];
    int64_t lanes = t->layout == TT_LANES ? r->m->k->lanes : 1;
    int64_t first = i / lanes * lanes * t->count + i % lanes;
    bool half = number_size(r->m, at) == sizeof(tt_bf16);

    for (int64_t k = 0; k < t->count; k++) {
        int64_t e = first + k * lanes;
        float v = half ? tt_bf16_get(((const tt_bf16 *)x)[e]) : ((const float *)x)[e];
        if (!isfinite(v)) return false;
    }
    return true;
}

/* The samples of a tensor that are not finite; false: there are none. */
static bool note_samples(tt_run *r, int at, const void *x)
{
    tt_fault *f = r->fault;

    for (int i = 0; i < r->in.n && x; i++) {
        if (sample_is_finite(r, at, x, i)) continue;
        if (f->samples < TT_FAULT_SAMPLES) f->sample[f->samples] = i;
        f->samples++;
    }
    return f->samples > 0;
}

static void look_at_call(tt_run *r, const call *c, bool back)
{
    tt_fault *f = r->fault;
    bool bad = false;

    if (f->layer || !r->in.n) return;
    if (c->kind == CALL_LOSS && !back) {
        bad = note_samples(r, c->in[0], c->in_grad[0] ? grad(r, c->in[0]) : NULL) ||
              !isfinite(r->result.loss);
    } else if (!back) {
        bad = note_samples(r, c->out, act(r, c->out));
    } else {
        for (int k = 0; k < c->in_count && !bad && c->kind != CALL_LOSS; k++)
            bad = c->in_grad[k] && note_samples(r, c->in[k], grad(r, c->in[k]));
        for (int k = 0; k < c->param_count && !bad && c->train_params; k++) {
            const tt_param *p = &r->m->g.params[c->param[k]];
            for (int64_t i = 0; i < p->n && !bad; i++) bad = !isfinite(r->grad[p->at + i]);
        }
    }
    if (!bad) return;
    f->backward = back;
    f->layer = c->layer >= 0          ? r->m->g.layers[c->layer].name
               : c->kind == CALL_LOSS ? "loss"
                                      : "input";
}

bool tt_run_probe(tt_run *r, const tt_batch *in, float *g, uint64_t seed, tt_fault *out)
{
    tt_yield y;

    *out = (tt_fault){0};
    tt_run_begin(r, TT_PASS_TRAIN, in, g, false, seed);
    r->fault = out;
    if (in->x && note_samples(r, 0, in->x)) out->layer = "input";
    do tt_run_advance(r, &y);
    while (y.kind != TT_PASS_DONE);
    r->fault = NULL;
    return out->layer != NULL;
}

void tt_run_advance(tt_run *r, tt_yield *out)
{
    const tt_model *m = r->m;
    int n = m->call_count, end = r->pass == TT_PASS_TRAIN ? 2 * n : n;

    while (r->time < end) {
        bool back = r->time >= n;
        if (r->time == n && !r->phase) r->result.turned_s = tt_clock_s();
        const call *c = &m->calls[back ? 2 * n - 1 - r->time : r->time];
        if (back && !c->backward) {
            r->time++;
            continue;
        }
        if (!r->in.n ? answer(r, c, r->phase)
            : back   ? perform_backward(r, c, r->phase)
                     : perform_forward(r, c, r->phase)) {
            r->phase = 1;
            *out = (tt_yield){.kind = TT_SUM,
                              .value = at_buffer(r, c->saved),
                              .n = (int)(2 * c->c + 1),
                              .wide = c->wide};
            return;
        }
        r->phase = 0;
        r->time++;
        if (r->fault) look_at_call(r, c, back);
        if (back && c->table >= 0) {
            *out = (tt_yield){.kind = TT_ROWS, .rows = rows_of_table(r, c)};
            return;
        }
        if (back && yields(c)) {
            *out = (tt_yield){.kind = TT_GRAD_READY, .grad = span_of(m, c)};
            return;
        }
    }
    *out = (tt_yield){.kind = TT_PASS_DONE};
}

const tt_result *tt_run_result(const tt_run *r)
{
    return &r->result;
}

const int64_t *tt_run_seen(const tt_run *r)
{
    return r->seen;
}

/* ---- Memory ---- */

typedef struct placed {
    int buf;
    int64_t at, size;
    int birth, death;
} placed;

static int larger_first(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return x->buf - y->buf;
}

static int lower_first(const void *a, const void *b)
{
    const placed *const *x = a, *const *y = b;
    return (*x)->at < (*y)->at ? -1 : (*x)->at > (*y)->at;
}

/* Largest first, each at the lowest place that is free during its life. */
static int64_t lay_out(placed *p, int count, placed **busy)
{
    int64_t end = 0;

    qsort(p, (size_t)count, sizeof *p, larger_first);
    for (int i = 0; i < count; i++) {
        int n = 0;
        int64_t at = 0;
        for (int k = 0; k < i; k++)
            if (p[k].birth <= p[i].death && p[i].birth <= p[k].death) busy[n++] = &p[k];
        qsort(busy, (size_t)n, sizeof *busy, lower_first);
        for (int k = 0; k < n && at + p[i].size > busy[k]->at; k++)
            if (busy[k]->at + busy[k]->size > at) at = busy[k]->at + busy[k]->size;
        p[i].at = at;
        if (at + p[i].size > end) end = at + p[i].size;
    }
    return end;
}

static int64_t size_of(const tt_model *m, const buffer *b, int n)
{
    int64_t bytes = b->per_sample * (b->lanes ? rounded(m, n) : n) + b->fixed;
    if (b->scratch_of) {
        const call *c = &m->calls[b->scratch_of - 1];
        tt_recur_args recur = c->recur;
        recur.n = n;
        bytes = (int64_t)(c->kind == CALL_RECUR ? m->k->recur_scratch(&recur)
                                                : m->k->conv_scratch(&c->conv, n * (int)c->rows));
    }
    return (bytes + 63) / 64 * 64;
}

tt_err tt_run_open(const tt_model *m, int most, bool train, tt_run **out)
{
    tt_run *r = calloc(1, sizeof *r);
    size_t count = (size_t)m->buffer_count, classes = (size_t)tt_model_pixel_classes(m);
    placed *p = calloc(count + 1, sizeof *p), **busy = calloc(count + 1, sizeof *busy);
    int n = 0;
    tt_err err = TT_OK;

    *out = NULL;
    if (r) r->offset = calloc(count + 1, sizeof *r->offset);
    if (r && classes) r->seen = calloc(3 * classes, sizeof *r->seen);
    if (!r || !p || !busy || !r->offset || (classes && !r->seen)) {
        err = tt_fail(TT_ENOMEM, "no memory for a model of %d calls", m->call_count);
        goto out;
    }
    r->m = m;
    r->most = most;
    r->train = train;
    for (int i = 0; i < m->buffer_count; i++) {
        const buffer *b = &m->buffers[i];
        int death = train ? b->death : b->death_forward;
        r->offset[i] = -1;
        if (death < b->birth) continue; /* never used on this way */
        p[n++] = (placed){i, 0, size_of(m, b, most), b->birth, death};
    }
    r->bytes = (size_t)lay_out(p, n, busy) + 64;
    for (int i = 0; i < n; i++) r->offset[p[i].buf] = p[i].at;
    r->memory = tt_block_alloc(r->bytes);
    if (!r->memory) {
        char buf[32];
        err = tt_fail(TT_ENOMEM,
                      "the activations of %d samples need %s, which this machine does not give: "
                      "use a smaller train.batch, or a larger train.accumulate",
                      most, tt_show_bytes((double)r->bytes, buf, sizeof buf));
        goto out;
    }
    *out = r;
    r = NULL;
out:
    free(p);
    free(busy);
    tt_run_close(r);
    return err;
}

tt_err tt_run_output(tt_run *r, const char *name, float *out, int64_t *features)
{
    const tt_model *m = r->m;
    int at = m->g.layer_count - 1;

    for (; name && at >= 0 && strcmp(m->g.layers[at].name, name); at--) {
    }
    if (at < 0) return tt_fail(TT_EINVAL, "there is no layer '%s'", name);
    bool kept = at == m->g.layer_count - 1 || at == m->keep;
    if (!kept || m->layer_tensor[at] < 0)
        return tt_fail(TT_EINVAL, "the output of '%s' was not kept: open the model with keep",
                       name);
    if (!act(r, m->layer_tensor[at]))
        return tt_fail(TT_EINVAL, "a run for training does not keep the output of '%s'",
                       m->g.layers[at].name);
    const tensor *t = &m->tensors[m->layer_tensor[at]];
    tt_shape s = m->g.layers[at].out;
    *features = t->count;
    if (!out) return TT_OK;
    if (t->wide && t->layout == TT_PLAIN) {
        memcpy(out, act(r, m->layer_tensor[at]), (size_t)(r->in.n * t->count) * sizeof *out);
    } else if (t->layout == TT_PLAIN) {
        m->k->widen(r->in.n * t->count, act(r, m->layer_tensor[at]), out);
    } else if (t->wide || m->k->precision == TT_IN_FLOAT32) {
        tt_kernels_float32(m->k)->reorder(r->in.n, shape_c(s), shape_hw(s), t->layout,
                                          act(r, m->layer_tensor[at]), TT_PLAIN, out, false);
    } else { /* into the upper half of `out`, and from there one by one: none is met too early */
        tt_bf16 *half = (tt_bf16 *)out + r->in.n * t->count;
        m->k->reorder(r->in.n, shape_c(s), shape_hw(s), t->layout, act(r, m->layer_tensor[at]),
                      TT_PLAIN, (void *)half, false);
        for (int64_t i = 0; i < r->in.n * t->count; i++) {
            tt_bf16 x;
            memcpy(&x, half + i, sizeof x);
            out[i] = tt_bf16_get(x);
        }
    }
    return TT_OK;
}

void tt_run_close(tt_run *r)
{
    if (!r) return;
    tt_block_free(r->memory, r->bytes);
    free(r->offset);
    free(r->seen);
    free(r);
}
