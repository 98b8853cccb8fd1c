/* perform: makes one call of a compiled model: its arguments, and the kernels that take them. */
#include <math.h>
#include <string.h>

#include "run.h"

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

static const void *packed_of(const tt_run *r, const call *c)
{
    return (const char *)r->m->packed + (size_t)c->packed_at * tt_kernels_element(r->m->k);
}

static void copy_numbers(const tt_run *r, void *to, const void *from, int64_t n)
{
    memcpy(to, from, (size_t)n * tt_kernels_element(r->m->k));
}

/* Numbers of all samples of a tensor, padded lanes included. */
static int64_t volume(const tt_run *r, int t)
{
    const tensor *x = &r->m->tensors[t];
    return x->count * (x->layout == TT_LANES ? rounded(r->m, r->in.n) : r->in.n);
}

/* ---- Arguments of the kernels ---- */

tt_conv_args conv_of(const tt_run *r, const call *c, bool back)
{
    tt_conv_args a = {.n = r->in.n * (int)c->rows,
                      .x = act(r, c->in[0]),
                      .w = weights(r, c, 0),
                      .b = weights(r, c, 1),
                      .packed = packed_of(r, c),
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

/* The numbers of a wide output, as the kernels write them: in the upper half of its memory. From
 * there they are widened one after the other, and none is met before it is read; gradients come
 * back the other way. */
static void *upper_half(const tt_run *r, int t)
{
    return (char *)act(r, t) + volume(r, t) * (int64_t)tt_kernels_element(r->m->k);
}

static bool widens(const tt_run *r, const call *c)
{
    return r->m->tensors[c->out].wide && r->m->k->precision == TT_IN_BF16;
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
        r->m->k->shift(n, beyond(r, act(r, c->in[0]), i * n), weights(r, c, 0),
                       beyond(r, act(r, c->out), i * n));
}

static void positions_back(const tt_run *r, const call *c)
{
    int64_t n = r->m->tensors[c->out].count, all = volume(r, c->out);
    float *dw = c->train_params ? weights_grad(r, c, 0) : NULL;
    void *dy = grad(r, c->out);

    for (int i = 0; i < r->in.n && dw; i++)
        r->m->k->gather(n, beyond(r, dy, i * n), dw, r->add || i);
    if (dw && !r->add) /* positions beyond those of the input have no part in anything */
        memset(dw + n, 0, (size_t)(r->m->g.params[c->param[0]].n - n) * sizeof *dw);
    if (!c->in_grad[0] || c->in_alias[0]) return;
    if (c->in_add[0])
        r->m->k->add(all, grad(r, c->in[0]), dy, grad(r, c->in[0]));
    else
        copy_numbers(r, grad(r, c->in[0]), dy, all);
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
    a.packed = packed_of(r, c);
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
bool norm_uses_batch(const tt_run *r, const call *c)
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
        void *d = grad(r, c->in[1]);
        int64_t n = volume(r, c->out);
        if (c->in_add[1])
            r->m->k->add(n, d, a.dy, d);
        else
            copy_numbers(r, d, a.dy, n);
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
    double scale = l->scale / (alone ? 1 : (double)c->rows);
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
    if (c->head >= 0 && r->train) {
        const tt_loss_args whole = a;
        head_judge(r, c, &whole, (float)scale, &a);
    } else {
        r->m->k->loss(&a);
        if (back && scale != 1) r->m->k->scale((int64_t)n * c->d, (float)scale, dx);
        if (back && c->in_add[0])
            tt_kernels_float32(r->m->k)->add((int64_t)n * c->d, grad(r, c->in[0]), dx,
                                             grad(r, c->in[0]));
    }
    out->part[c->loss] = a.loss;
    out->part_weight[c->loss] = a.weight;
    out->loss += scale * a.loss;
    /* One loss is averaged over the rows that count; several are averaged over all rows, each over
     * its own of a sample, because the parts of one gradient cannot be divided by different numbers
     * afterwards. */
    out->weight = alone ? a.weight : r->in.n;
    if (c->loss == r->m->g.judged) {
        out->correct = a.correct;
        out->top5 = a.top5;
        out->rows = a.rows;
    }
}

/* ---- The calls ---- */

/* From float32 to what the kernels store, or the other way; gradients back. */
static void convert(const tt_run *r, const call *c, bool back)
{
    const tt_kernels *k = r->m->k;
    int64_t n = volume(r, c->out);
    bool narrows = r->m->tensors[c->in[0]].wide;

    if (!back)
        narrows ? k->narrow(n, act(r, c->in[0]), act(r, c->out), false)
                : k->widen(n, act(r, c->in[0]), act(r, c->out));
    else if (narrows) { /* of a custom layer's output alone, which nobody else takes */
        TT_ASSERT(!c->in_add[0]);
        k->widen(n, grad(r, c->out), grad(r, c->in[0]));
    } else
        k->narrow(n, grad(r, c->out), grad(r, c->in[0]), c->in_add[0]);
}

/* Concat's inputs, side by side in blocks of `outer` rows. */
static void concat(const tt_run *r, const call *c, bool back)
{
    int64_t outer = r->in.n, unit = c->hw, done = 0;

    if (c->layout == TT_NHWC) outer = r->in.n * c->hw, unit = 1;
    if (c->layout == TT_LANES) outer = slices(r), unit = c->hw * r->m->k->lanes;
    for (int k = 0; k < c->in_count; k++) {
        int64_t n = c->in_c[k] * unit, all = c->c * unit;
        for (int64_t i = 0; i < outer && !back; i++)
            copy_numbers(r, beyond(r, act(r, c->out), i * all + done),
                         beyond(r, act(r, c->in[k]), i * n), n);
        for (int64_t i = 0; i < outer && back && c->in_grad[k]; i++) {
            void *to = beyond(r, grad(r, c->in[k]), i * n);
            const void *from = beyond(r, grad(r, c->out), i * all + done);
            if (c->in_add[k])
                r->m->k->add(n, to, from, to);
            else
                copy_numbers(r, to, from, n);
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
    if (add) tt_kernels_float32(r->m->k)->add(volume(r, c->in[0]), dx, to, dx);
}

bool perform_forward(tt_run *r, const call *c, int phase)
{
    const tt_kernels *k = r->m->k;
    int64_t n = c->kind == CALL_LOSS ? 0 : volume(r, c->out);

    switch (c->kind) {
    case CALL_CONV: {
        if (in_blocks(r, c)) break;
        tt_conv_args a = conv_of(r, c, false);
        if (widens(r, c)) a.y = upper_half(r, c->out);
        k->conv_forward(&c->conv, &a);
        if (widens(r, c)) k->widen(n, upper_half(r, c->out), act(r, c->out));
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
            copy_numbers(r, act(r, c->out), act(r, c->in[0]), n);
        }
        break;
    case CALL_REORDER:
        k->reorder(r->in.n, c->c, c->hw, c->from, act(r, c->in[0]), c->layout, act(r, c->out),
                   false);
        break;
    case CALL_CONVERT:
        convert(r, c, false);
        break;
    case CALL_CUSTOM:
        custom(r, c, false);
        break;
    case CALL_EMBED: {
        tt_embed_args a = embed_of(r, c, false);
        if (c->table >= 0)
            look_up(r->m, c->table, &a, c->bag);
        else
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

bool perform_backward(tt_run *r, const call *c, int phase)
{
    const tt_kernels *k = r->m->k;
    int64_t n = volume(r, c->out);

    switch (c->kind) {
    case CALL_CONV: {
        if (in_blocks(r, c)) break;
        tt_conv_args a = conv_of(r, c, true);
        if (widens(r, c)) k->narrow(n, grad(r, c->out), grad(r, c->out), false);
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
            void *to = grad(r, c->in[i]);
            if (c->in_add[i])
                k->add(n, to, grad(r, c->out), to);
            else
                copy_numbers(r, to, grad(r, c->out), n);
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
    case CALL_CONVERT:
        convert(r, c, true);
        break;
    case CALL_CUSTOM:
        custom(r, c, true);
        break;
    case CALL_EMBED:
        if (c->table < 0) embed_back(r, c); /* else it is the driver's */
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
