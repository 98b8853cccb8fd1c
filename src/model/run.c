/* run: makes the calls of a compiled model, and stops where something must cross to other runs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

struct tt_run {
    const tt_model *m;
    int most; /* samples it has room for                     */
    bool train;
    char *memory;
    size_t bytes;
    int64_t *offset; /* of each buffer; -1: not there               */
    tt_pass pass;
    tt_batch in;
    float *grad;
    bool add;
    uint64_t seed;
    int time, phase; /* see calls.h; phase 1: a norm has its sums   */
    tt_result result;
    int64_t *seen;   /* of the classes of pixels: tt_run_seen; NULL: none are judged */
    tt_fault *fault; /* where to tell of numbers that are none; NULL: nobody asks */
};

static int slices(const tt_run *r)
{
    return r->m->k->lanes ? (r->in.n + r->m->k->lanes - 1) / r->m->k->lanes : 0;
}

static int rounded(const tt_model *m, int n)
{
    int lanes = m->k->lanes ? m->k->lanes : 1;
    return (n + lanes - 1) / lanes * lanes;
}

static void *at_buffer(const tt_run *r, int buf)
{
    return buf < 0 || r->offset[buf] < 0 ? NULL : r->memory + r->offset[buf];
}

/* Tensor 0 is the batch itself; nothing writes to it. */
static float *act(const tt_run *r, int t)
{
    return t ? at_buffer(r, r->m->tensors[t].act) : (float *)(uintptr_t)r->in.x;
}
static float *grad(const tt_run *r, int t)
{
    return at_buffer(r, r->m->tensors[t].grad);
}
static float *grad_if(const tt_run *r, const call *c, int k)
{
    return c->in_grad[k] ? grad(r, c->in[k]) : NULL;
}

static const float *weights(const tt_run *r, const call *c, int i)
{
    return i < c->param_count ? r->m->params + r->m->g.params[c->param[i]].at : NULL;
}

static float *weights_grad(const tt_run *r, const call *c, int i)
{
    return i < c->param_count ? r->grad + r->m->g.params[c->param[i]].at : NULL;
}

/* Floats of all samples of a tensor, padded lanes included. */
static int64_t volume(const tt_run *r, int t)
{
    const tensor *x = &r->m->tensors[t];
    return x->count * (x->layout == TT_LANES ? rounded(r->m, r->in.n) : r->in.n);
}

/* ---- Arguments of the kernels ---- */

static tt_conv_args conv_of(const tt_run *r, const call *c, bool back)
{
    tt_conv_args a = {.n = r->in.n * (int)c->rows,
                      .x = act(r, c->in[0]),
                      .w = weights(r, c, 0),
                      .b = weights(r, c, 1),
                      .packed = r->m->packed + c->packed_at,
                      .y = act(r, c->out),
                      .pick = at_buffer(r, c->saved),
                      .scratch = at_buffer(r, back ? c->scratch_back : c->scratch)};
    if (!back) return a;
    a.dy = grad(r, c->out);
    a.dx = grad_if(r, c, 0);
    a.dx_add = c->in_add[0];
    if (c->train_params) {
        a.dw = weights_grad(r, c, 0);
        a.db = weights_grad(r, c, 1);
        a.dw_add = r->add;
    }
    return a;
}

/* Tensors as outer x (h, w) x inner. */
static tt_pool_args pool_of(const tt_run *r, const call *c, bool back)
{
    int lanes = r->m->k->lanes;
    tt_pool_args a = {.win = c->win,
                      .outer = (int64_t)r->in.n * c->c,
                      .inner = 1,
                      .count_pad = c->count_pad,
                      .x = act(r, c->in[0]),
                      .y = act(r, c->out),
                      .pick = at_buffer(r, c->saved)};
    if (c->layout == TT_NHWC) a.outer = r->in.n, a.inner = c->c;
    if (c->layout == TT_LANES) a.outer = slices(r) * c->c, a.inner = lanes;
    if (back) {
        a.dy = grad(r, c->out);
        a.dx = grad(r, c->in[0]);
        a.dx_add = c->in_add[0];
    }
    return a;
}

static tt_upsample_args upsample_of(const tt_run *r, const call *c, bool back)
{
    tt_upsample_args a = {.outer = (int64_t)r->in.n * c->c,
                          .inner = 1,
                          .h = c->win.h,
                          .w = c->win.w,
                          .sh = c->win.sh,
                          .sw = c->win.sw,
                          .bilinear = c->bilinear,
                          .x = act(r, c->in[0]),
                          .y = act(r, c->out)};
    if (c->layout == TT_NHWC) a.outer = r->in.n, a.inner = c->c;
    if (c->layout == TT_LANES) a.outer = slices(r) * c->c, a.inner = r->m->k->lanes;
    if (back) {
        a.dy = grad(r, c->out);
        a.dx = grad(r, c->in[0]);
        a.dx_add = c->in_add[0];
    }
    return a;
}

static tt_norm_args norm_of(const tt_run *r, const call *c, bool back)
{
    double *sums = at_buffer(r, c->saved);
    tt_norm_args a = {.a = r->in.n,
                      .c = c->c,
                      .b = c->hw,
                      .eps = c->eps,
                      .relu = c->relu,
                      .x = act(r, c->in[0]),
                      .gamma = weights(r, c, 0),
                      .beta = weights(r, c, 1),
                      .shift = weights(r, c, 2),
                      .sums = sums,
                      .mean = (float *)(sums + 2 * c->c + 1),
                      .y = act(r, c->out)};
    a.rstd = a.mean + c->c;
    if (c->add >= 0) a.add = act(r, c->add);
    if (c->layout == TT_NHWC) a.a = r->in.n * c->hw, a.b = 1;
    if (c->layout == TT_LANES) {
        a.lanes = r->m->k->lanes;
        a.a = slices(r);
        a.b = c->hw * a.lanes;
        a.valid = r->in.n - (slices(r) - 1) * a.lanes;
    }
    if (back) {
        a.dy = grad(r, c->out);
        a.dx = grad_if(r, c, 0);
        a.dx_add = c->in_add[0];
    }
    return a;
}

static tt_rows_args rows_of(const tt_run *r, const call *c, bool back)
{
    tt_rows_args a = {.outer = r->in.n * c->lead,
                      .d = c->d,
                      .inner = c->tail,
                      .eps = c->eps,
                      .x = act(r, c->in[0]),
                      .gamma = weights(r, c, 0),
                      .beta = weights(r, c, 1),
                      .y = act(r, c->out),
                      .mean = at_buffer(r, c->saved)};
    if (c->layout == TT_LANES) {
        a.outer = slices(r) * c->lead;
        a.inner = c->tail * r->m->k->lanes;
    }
    if (a.mean) a.rstd = a.mean + a.outer * a.inner;
    if (!back) return a;
    if (c->kind == CALL_SOFTMAX) a.x = a.y;
    a.dy = grad(r, c->out);
    a.dx = grad_if(r, c, 0);
    a.dx_add = c->in_add[0];
    if (c->train_params) {
        a.dgamma = weights_grad(r, c, 0);
        a.dbeta = weights_grad(r, c, 1);
        a.dw_add = r->add;
    }
    return a;
}

static tt_drop_args drop_of(const tt_run *r, const call *c, bool back)
{
    return (tt_drop_args){.n = r->in.n,
                          .c = c->c,
                          .hw = c->hw,
                          .layout = c->layout,
                          .p = c->p,
                          .key = tt_random_key(r->seed, r->m->g.layers[c->layer].name),
                          .place = r->in.place,
                          .x = back ? grad(r, c->out) : act(r, c->in[0]),
                          .y = back ? grad(r, c->in[0]) : act(r, c->out),
                          .add = back && c->in_add[0]};
}

/* ---- Sequences ---- */

static tt_embed_args embed_of(const tt_run *r, const call *c, bool back)
{
    tt_embed_args a = c->embed;

    a.n = r->in.n;
    a.id = r->in.ids + c->first;
    a.w = weights(r, c, 0);
    a.y = act(r, c->out);
    a.dy = back ? grad(r, c->out) : NULL;
    a.dw = back ? weights_grad(r, c, 0) : NULL;
    return a;
}

static void embed_back(const tt_run *r, const call *c)
{
    tt_embed_args a = embed_of(r, c, true);

    if (!r->add && !c->late) memset(a.dw, 0, (size_t)r->m->g.params[c->param[0]].n * sizeof *a.dw);
    (c->bag ? r->m->k->bag_backward : r->m->k->embed_backward)(&a);
}

static void positions(const tt_run *r, const call *c)
{
    int64_t n = r->m->tensors[c->out].count;

    for (int i = 0; i < r->in.n; i++)
        r->m->k->add(n, act(r, c->in[0]) + i * n, weights(r, c, 0), act(r, c->out) + i * n);
}

static void positions_back(const tt_run *r, const call *c)
{
    int64_t n = r->m->tensors[c->out].count, all = volume(r, c->out);
    float *dw = c->train_params ? weights_grad(r, c, 0) : NULL, *dy = grad(r, c->out);

    if (dw && !r->add) memcpy(dw, dy, (size_t)n * sizeof *dw);
    for (int i = !r->add; i < r->in.n && dw; i++) r->m->k->add(n, dw, dy + i * n, dw);
    if (!c->in_grad[0] || c->in_alias[0]) return;
    if (c->in_add[0])
        r->m->k->add(all, grad(r, c->in[0]), dy, grad(r, c->in[0]));
    else
        memcpy(grad(r, c->in[0]), dy, (size_t)all * sizeof *dy);
}

static tt_attend_args attend_of(const tt_run *r, const call *c, bool back)
{
    tt_attend_args a = c->attend;

    a.n = r->in.n;
    a.x = act(r, c->in[0]);
    a.y = act(r, c->out);
    a.lse = at_buffer(r, c->saved);
    a.scratch = at_buffer(r, back ? c->scratch_back : c->scratch);
    if (!back) return a;
    a.dy = grad(r, c->out);
    a.dx = grad(r, c->in[0]);
    a.dx_add = c->in_add[0];
    return a;
}

/* ---- Vectors of a sample, together ---- */

static tt_fold_args fold_of(const tt_run *r, const call *c, bool back)
{
    return (tt_fold_args){.n = r->in.n,
                          .k = c->lead,
                          .dim = c->d,
                          .x = act(r, c->in[0]),
                          .y = act(r, c->out),
                          .dy = back ? grad(r, c->out) : NULL,
                          .dx = back ? grad(r, c->in[0]) : NULL,
                          .dx_add = c->in_add[0]};
}

static tt_interact_args interact_of(const tt_run *r, const call *c, bool back)
{
    tt_interact_args a = c->interact;

    a.n = r->in.n;
    a.y = act(r, c->out);
    a.dy = back ? grad(r, c->out) : NULL;
    a.scratch = at_buffer(r, back ? c->scratch_back : c->scratch);
    for (int i = 0; i < a.parts; i++) {
        a.x[i] = act(r, c->in[i]);
        a.dx[i] = back ? grad_if(r, c, i) : NULL;
        a.dx_add[i] = c->in_add[i];
    }
    return a;
}

static tt_recur_args recur_of(const tt_run *r, const call *c, bool back)
{
    tt_recur_args a = c->recur;

    a.n = r->in.n;
    a.x = act(r, c->in[0]);
    a.w_ih = weights(r, c, 0), a.w_hh = weights(r, c, 1);
    a.b_ih = weights(r, c, 2), a.b_hh = weights(r, c, 3);
    a.packed = r->m->packed + c->packed_at;
    a.y = act(r, c->out);
    a.saved = at_buffer(r, c->saved);
    a.scratch = at_buffer(r, back ? c->scratch_back : c->scratch);
    if (!back) return a;
    a.dy = grad(r, c->out);
    a.dx = grad_if(r, c, 0);
    a.dx_add = c->in_add[0];
    if (c->train_params) {
        a.dw_ih = weights_grad(r, c, 0), a.dw_hh = weights_grad(r, c, 1);
        a.db_ih = weights_grad(r, c, 2), a.db_hh = weights_grad(r, c, 3);
        a.dw_add = r->add;
    }
    return a;
}

/* ---- Batch norm: the one that needs other grains ---- */

static void norm_statistics(const tt_run *r, const call *c, const tt_norm_args *a)
{
    double n = a->sums[2 * c->c];

    for (int64_t i = 0; i < c->c; i++) {
        double m = a->sums[i] / n, var = a->sums[c->c + i] / n - m * m;
        if (var < 0) var = 0; /* rounding of a constant channel; a NaN stays one */
        a->mean[i] = (float)(a->shift[i] + m);
        a->rstd[i] = (float)(1 / sqrt(var + c->eps));
        /* Running statistics travel as gradients do: samples x value, divided once by all samples.
         */
        float *mean = weights_grad(r, c, 2) + i, *unbiased = weights_grad(r, c, 3) + i;
        float m_add = (float)(r->in.n * (a->shift[i] + m)),
              v_add = (float)(r->in.n * (n > 1 ? var * n / (n - 1) : var));
        *mean = r->add ? *mean + m_add : m_add;
        *unbiased = r->add ? *unbiased + v_add : v_add;
    }
}

static void norm_running(const tt_run *r, const call *c, const tt_norm_args *a)
{
    const float *mean = weights(r, c, 2), *var = weights(r, c, 3);
    for (int64_t i = 0; i < c->c; i++) {
        a->mean[i] = mean[i];
        a->rstd[i] = (float)(1 / sqrt((double)var[i] + c->eps));
    }
}

/* A frozen norm keeps its running statistics, in training too. */
static bool norm_uses_batch(const tt_run *r, const call *c)
{
    return r->pass == TT_PASS_TRAIN && c->train_params;
}

/* True: its sums must go round before it can go on. */
static bool norm_forward(const tt_run *r, const call *c, int phase)
{
    tt_norm_args a = norm_of(r, c, false);

    if (!norm_uses_batch(r, c)) {
        norm_running(r, c, &a);
    } else {
        if (!phase) r->m->k->norm_sums(&a);
        if (!phase && r->m->sync_norm) return true;
        norm_statistics(r, c, &a);
    }
    r->m->k->norm_forward(&a);
    return false;
}

static bool norm_backward(const tt_run *r, const call *c, int phase)
{
    tt_norm_args a = norm_of(r, c, true);

    if (!phase) {
        r->m->k->norm_backward_sums(&a);
        a.sums[2 * c->c] = (double)r->in.n * (double)c->hw;
        if (c->train_params) {
            float *dbeta = weights_grad(r, c, 1), *dgamma = weights_grad(r, c, 0);
            for (int64_t i = 0; i < c->c; i++) {
                dbeta[i] = (r->add ? dbeta[i] : 0) + (float)a.sums[i];
                dgamma[i] = (r->add ? dgamma[i] : 0) + (float)a.sums[c->c + i];
            }
        }
        /* With fixed statistics the input's gradient is a mere scaling: no sums in it. */
        if (!norm_uses_batch(r, c))
            memset(a.sums, 0, (size_t)(2 * c->c) * sizeof *a.sums);
        else if (r->m->sync_norm)
            return true;
    }
    if (a.dx) r->m->k->norm_backward(&a);
    if (c->add >= 0 && c->in_grad[1] && !c->in_alias[1]) {
        float *d = grad(r, c->in[1]);
        int64_t n = volume(r, c->out);
        if (c->in_add[1])
            r->m->k->add(n, d, a.dy, d);
        else
            memcpy(d, a.dy, (size_t)n * sizeof *d);
    }
    return false;
}

/* ---- Losses ---- */

static void judge(tt_run *r, const call *c)
{
    const loss *l = &r->m->g.losses[c->loss];
    tt_result *out = &r->result;
    bool back = r->pass == TT_PASS_TRAIN && c->in_grad[0], alone = r->m->g.loss_count == 1;
    float *dx = !back ? NULL : c->in_add[0] ? at_buffer(r, c->scratch) : grad(r, c->in[0]);
    int n = r->in.n * (int)c->rows;
    tt_loss_args a = {.kind = l->kind,
                      .n = n,
                      .d = c->d,
                      .x = act(r, c->in[0]),
                      .dx = dx,
                      .label = l->target == BY_LABEL ? r->in.label : NULL,
                      .target = l->target == BY_INPUT    ? r->in.x
                                : l->target == BY_TARGET ? r->in.target
                                                         : NULL,
                      .class_weight = l->class_weight,
                      .smoothing = l->smoothing};

    if (c->loss == r->m->g.judged && r->pass == TT_PASS_EVAL) a.seen = r->seen;
    r->m->k->loss(&a);
    if (back && l->scale != 1) r->m->k->scale((int64_t)n * c->d, (float)l->scale, dx);
    if (back && c->in_add[0])
        r->m->k->add((int64_t)n * c->d, grad(r, c->in[0]), dx, grad(r, c->in[0]));
    out->part[c->loss] = a.loss;
    out->part_weight[c->loss] = a.weight;
    out->loss += l->scale * a.loss;
    /* One loss is averaged over the rows that count; several are averaged over all rows, because
     * the parts of one gradient cannot be divided by different numbers afterwards. */
    out->weight = alone ? a.weight : n;
    if (c->loss == r->m->g.judged) {
        out->correct = a.correct;
        out->top5 = a.top5;
        out->rows = a.rows;
    }
}

/* ---- The calls ---- */

/* Concat's inputs, side by side in blocks of `outer` rows. */
static void concat(const tt_run *r, const call *c, bool back)
{
    int64_t outer = r->in.n, unit = c->hw, done = 0;

    if (c->layout == TT_NHWC) outer = r->in.n * c->hw, unit = 1;
    if (c->layout == TT_LANES) outer = slices(r), unit = c->hw * r->m->k->lanes;
    for (int k = 0; k < c->in_count; k++) {
        int64_t n = c->in_c[k] * unit, all = c->c * unit;
        for (int64_t i = 0; i < outer && !back; i++)
            memcpy(act(r, c->out) + i * all + done, act(r, c->in[k]) + i * n,
                   (size_t)n * sizeof(float));
        for (int64_t i = 0; i < outer && back && c->in_grad[k]; i++) {
            float *to = grad(r, c->in[k]) + i * n;
            const float *from = grad(r, c->out) + i * all + done;
            if (c->in_add[k])
                r->m->k->add(n, to, from, to);
            else
                memcpy(to, from, (size_t)n * sizeof *to);
        }
        done += n;
    }
}

static void custom(const tt_run *r, const call *c, bool back)
{
    const float *w[LAYER_PARAMS];
    float *dw[LAYER_PARAMS];
    float *dx = back ? grad_if(r, c, 0) : NULL;
    bool add = dx && c->in_add[0];

    for (int i = 0; i < c->param_count; i++) {
        w[i] = weights(r, c, i);
        dw[i] = back && c->train_params ? weights_grad(r, c, i) : NULL;
        if (dw[i] && !r->add)
            memset(dw[i], 0, (size_t)r->m->g.params[c->param[i]].n * sizeof(float));
    }
    if (!back) {
        c->custom->forward(c->args, r->in.n, act(r, c->in[0]), w, act(r, c->out),
                           r->pass == TT_PASS_TRAIN);
        return;
    }
    float *to = add ? at_buffer(r, c->scratch_back) : dx;
    c->custom->backward(c->args, r->in.n, act(r, c->in[0]), act(r, c->out), grad(r, c->out), w, to,
                        dw);
    if (add) r->m->k->add(volume(r, c->in[0]), dx, to, dx);
}

static bool forward(tt_run *r, const call *c, int phase)
{
    const tt_kernels *k = r->m->k;
    int64_t n = c->kind == CALL_LOSS ? 0 : volume(r, c->out);

    switch (c->kind) {
    case CALL_CONV: {
        tt_conv_args a = conv_of(r, c, false);
        k->conv_forward(&c->conv, &a);
        break;
    }
    case CALL_MAXPOOL:
    case CALL_AVGPOOL: {
        tt_pool_args a = pool_of(r, c, false);
        (c->kind == CALL_MAXPOOL ? k->maxpool_forward : k->avgpool_forward)(&a);
        break;
    }
    case CALL_UPSAMPLE: {
        tt_upsample_args a = upsample_of(r, c, false);
        k->upsample_forward(&a);
        break;
    }
    case CALL_NORM:
        return norm_forward(r, c, phase);
    case CALL_LAYERNORM:
    case CALL_SOFTMAX: {
        tt_rows_args a = rows_of(r, c, false);
        if (c->kind == CALL_SOFTMAX)
            k->softmax_forward(&a, c->log);
        else
            k->layernorm_forward(&a);
        break;
    }
    case CALL_UNARY:
        k->unary_forward(c->unary, n, act(r, c->in[0]), act(r, c->out));
        break;
    case CALL_ADD:
        k->add(n, act(r, c->in[0]), act(r, c->in[1]), act(r, c->out));
        for (int i = 2; i < c->in_count; i++)
            k->add(n, act(r, c->out), act(r, c->in[i]), act(r, c->out));
        break;
    case CALL_MUL:
        k->mul(n, act(r, c->in[0]), act(r, c->in[1]), act(r, c->out), false);
        break;
    case CALL_CONCAT:
        concat(r, c, false);
        break;
    case CALL_DROPOUT:
        if (r->pass == TT_PASS_TRAIN && c->p > 0) {
            tt_drop_args a = drop_of(r, c, false);
            k->dropout(&a);
        } else {
            memcpy(act(r, c->out), act(r, c->in[0]), (size_t)n * sizeof(float));
        }
        break;
    case CALL_REORDER:
        k->reorder(r->in.n, c->c, c->hw, c->from, act(r, c->in[0]), c->layout, act(r, c->out),
                   false);
        break;
    case CALL_CUSTOM:
        custom(r, c, false);
        break;
    case CALL_EMBED: {
        tt_embed_args a = embed_of(r, c, false);
        (c->bag ? k->bag_forward : k->embed_forward)(&a);
        break;
    }
    case CALL_POSITIONS:
        positions(r, c);
        break;
    case CALL_ATTEND: {
        tt_attend_args a = attend_of(r, c, false);
        k->attend_forward(&a);
        break;
    }
    case CALL_INTERACT: {
        tt_interact_args a = interact_of(r, c, false);
        k->interact_forward(&a);
        break;
    }
    case CALL_FM:
    case CALL_SUM: {
        tt_fold_args a = fold_of(r, c, false);
        (c->kind == CALL_FM ? k->fm_forward : k->sum_forward)(&a);
        break;
    }
    case CALL_RECUR: {
        tt_recur_args a = recur_of(r, c, false);
        k->recur_forward(&a);
        break;
    }
    case CALL_LOSS:
        if (r->pass != TT_PASS_PREDICT) judge(r, c);
        break;
    }
    return false;
}

static bool backward(tt_run *r, const call *c, int phase)
{
    const tt_kernels *k = r->m->k;
    int64_t n = volume(r, c->out);

    switch (c->kind) {
    case CALL_CONV: {
        tt_conv_args a = conv_of(r, c, true);
        k->conv_backward(&c->conv, &a);
        break;
    }
    case CALL_MAXPOOL:
    case CALL_AVGPOOL: {
        tt_pool_args a = pool_of(r, c, true);
        (c->kind == CALL_MAXPOOL ? k->maxpool_backward : k->avgpool_backward)(&a);
        break;
    }
    case CALL_UPSAMPLE: {
        tt_upsample_args a = upsample_of(r, c, true);
        k->upsample_backward(&a);
        break;
    }
    case CALL_NORM:
        return norm_backward(r, c, phase);
    case CALL_LAYERNORM:
    case CALL_SOFTMAX: {
        tt_rows_args a = rows_of(r, c, true);
        if (c->kind == CALL_SOFTMAX)
            k->softmax_backward(&a, c->log);
        else
            k->layernorm_backward(&a);
        break;
    }
    case CALL_UNARY:
        k->unary_backward(c->unary, n, act(r, c->in[0]), act(r, c->out), grad(r, c->out),
                          grad(r, c->in[0]), c->in_add[0]);
        break;
    case CALL_ADD:
        for (int i = 0; i < c->in_count; i++) {
            if (!c->in_grad[i] || c->in_alias[i]) continue;
            float *to = grad(r, c->in[i]);
            if (c->in_add[i])
                k->add(n, to, grad(r, c->out), to);
            else
                memcpy(to, grad(r, c->out), (size_t)n * sizeof *to);
        }
        break;
    case CALL_MUL:
        for (int i = 0; i < 2; i++)
            if (c->in_grad[i])
                k->mul(n, grad(r, c->out), act(r, c->in[1 - i]), grad(r, c->in[i]), c->in_add[i]);
        break;
    case CALL_CONCAT:
        concat(r, c, true);
        break;
    case CALL_DROPOUT: {
        tt_drop_args a = drop_of(r, c, true);
        k->dropout(&a);
        break;
    }
    case CALL_REORDER:
        k->reorder(r->in.n, c->c, c->hw, c->layout, grad(r, c->out), c->from, grad(r, c->in[0]),
                   c->in_add[0]);
        break;
    case CALL_CUSTOM:
        custom(r, c, true);
        break;
    case CALL_EMBED:
        embed_back(r, c);
        break;
    case CALL_POSITIONS:
        positions_back(r, c);
        break;
    case CALL_ATTEND: {
        tt_attend_args a = attend_of(r, c, true);
        k->attend_backward(&a);
        break;
    }
    case CALL_INTERACT: {
        tt_interact_args a = interact_of(r, c, true);
        k->interact_backward(&a);
        break;
    }
    case CALL_FM:
    case CALL_SUM: {
        tt_fold_args a = fold_of(r, c, true);
        (c->kind == CALL_FM ? k->fm_backward : k->sum_backward)(&a);
        break;
    }
    case CALL_RECUR: {
        tt_recur_args a = recur_of(r, c, true);
        k->recur_backward(&a);
        break;
    }
    case CALL_LOSS:
        break;
    }
    return false;
}

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

static bool sample_is_finite(const tt_run *r, const tensor *t, const float *x, int i)
{
    int64_t lanes = t->layout == TT_LANES ? r->m->k->lanes : 1;

    x += i / lanes * lanes * t->count + i % lanes;
    for (int64_t k = 0; k < t->count; k++)
        if (!isfinite(x[k * lanes])) return false;
    return true;
}

/* The samples of a tensor that are not finite; false: there are none. */
static bool note_samples(tt_run *r, int at, const float *x)
{
    tt_fault *f = r->fault;

    for (int i = 0; i < r->in.n && x; i++) {
        if (sample_is_finite(r, &r->m->tensors[at], x, i)) continue;
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
            : back   ? backward(r, c, r->phase)
                     : forward(r, c, r->phase)) {
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
    int64_t bytes = b->per_sample * rounded(m, n) + b->fixed;
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
                      "use a smaller "
                      "train.batch or more grains",
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
    const tensor *t = &m->tensors[m->layer_tensor[at]];
    tt_shape s = m->g.layers[at].out;
    *features = t->count;
    if (!out) return TT_OK;
    if (t->layout == TT_PLAIN)
        memcpy(out, act(r, m->layer_tensor[at]), (size_t)(r->in.n * t->count) * sizeof *out);
    else
        m->k->reorder(r->in.n, shape_c(s), shape_hw(s), t->layout, act(r, m->layer_tensor[at]),
                      TT_PLAIN, out, false);
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
