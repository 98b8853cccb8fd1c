/* lives: from when to when each buffer of a compiled model is needed, see calls.h, and for how many
 * samples. Where a run is not for training, its life ends with the way forward. */
#include "calls.h"

static void live(tt_model *m, int buf, int time)
{
    if (buf < 0) return;
    buffer *x = &m->buffers[buf];
    if (time < x->birth) x->birth = time;
    if (time > x->death) x->death = time;
    if (time < m->call_count && time > x->death_forward) x->death_forward = time;
}

/* Only where a run is for training; only where it is not. */
static void live_train(tt_model *m, int buf, int time)
{
    if (buf < 0) return;
    buffer *x = &m->buffers[buf];
    if (time < x->birth) x->birth = time;
    if (time > x->death) x->death = time;
}

static void live_use(tt_model *m, int buf, int time)
{
    if (buf < 0) return;
    buffer *x = &m->buffers[buf];
    if (time < x->birth) x->birth = time;
    if (time > x->death_forward) x->death_forward = time;
}

static bool needs_input_back(const call *c)
{
    switch (c->kind) {
    case CALL_CONV:
    case CALL_RECUR:
        return c->train_params;
    case CALL_NORM:
    case CALL_LAYERNORM:
    case CALL_MUL:
    case CALL_CUSTOM:
    case CALL_ATTEND:
    case CALL_INTERACT:
    case CALL_FM:
        return true;
    case CALL_UNARY:
        return c->unary == TT_GELU || c->unary == TT_GELU_TANH;
    default:
        return false;
    }
}

static bool needs_output_back(const call *c)
{
    switch (c->kind) {
    case CALL_CONV:
        return c->conv.relu && !c->conv.pool;
    case CALL_NORM:
        return c->relu;
    case CALL_RECUR:
        return !c->recur.last;
    case CALL_SOFTMAX:
    case CALL_CUSTOM:
    case CALL_ATTEND:
        return true;
    case CALL_UNARY:
        return c->unary != TT_GELU && c->unary != TT_GELU_TANH;
    default:
        return false;
    }
}

static void last_to_end(tt_model *m, int t)
{
    for (int i = 0; i < m->call_count; i++)
        if (m->calls[i].judged && m->calls[i].out == t) {
            live_use(m, m->tensors[t].act, m->call_count - 1);
            return;
        }
    live(m, m->tensors[t].act, m->call_count - 1);
    live(m, m->tensors[t].act, 2 * m->call_count);
}

/* A loss at time i that is computed with its layer: what that takes and gives, it does. */
static void plan_head_lives(tt_model *m, const call *c, int i)
{
    const call *head = &m->calls[c->head];

    live_train(m, c->block, i);
    live_train(m, c->block_grad, i);
    live_train(m, c->scratch, i);
    live_train(m, m->tensors[head->in[0]].act, i);
    if (head->in_grad[0]) live_train(m, m->tensors[head->in[0]].grad, i);
    live_use(m, m->tensors[c->in[0]].act, i);
}

/* That layer, forward and back. */
static void plan_judged_lives(tt_model *m, const call *c, int i)
{
    live_use(m, c->scratch, i);
    live_use(m, m->tensors[c->out].act, i);
    live(m, m->tensors[c->in[0]].act, i);
}

static void plan_call_lives(tt_model *m, const call *c, int i)
{
    int back = 2 * m->call_count - 1 - i;

    live(m, c->scratch, i);
    live(m, c->saved, i);
    for (int k = 0; k < c->in_count; k++) live(m, m->tensors[c->in[k]].act, i);
    if (c->kind == CALL_LOSS) {
        if (c->in_grad[0]) live(m, m->tensors[c->in[0]].grad, i);
        return;
    }
    live(m, m->tensors[c->out].act, i);
    if (!c->backward) return;
    live(m, c->scratch_back, back);
    live(m, c->saved, back);
    live(m, m->tensors[c->out].grad, back);
    for (int k = 0; k < c->in_count; k++) {
        if (c->in_grad[k]) live(m, m->tensors[c->in[k]].grad, back);
        if (needs_input_back(c)) live(m, m->tensors[c->in[k]].act, back);
    }
    if (needs_output_back(c)) live(m, m->tensors[c->out].act, back);
}

/* Where samples are lanes, whole vectors of them are written. A few sequences would else take the
 * room of as many as there are lanes. */
static void plan_lanes(tt_model *m)
{
    for (int t = 1; t < m->tensor_count; t++) {
        const tensor *x = &m->tensors[t];
        if (x->layout != TT_LANES) continue;
        m->buffers[x->act].lanes = true;
        if (x->grad >= 0) m->buffers[x->grad].lanes = true;
    }
    for (int i = 0; i < m->call_count; i++) {
        const call *c = &m->calls[i];
        if (c->layout == TT_LANES && c->saved >= 0) m->buffers[c->saved].lanes = true;
    }
}

void plan_lives(tt_model *m)
{
    plan_lanes(m);
    for (int i = 0; i < m->call_count; i++) {
        const call *c = &m->calls[i];
        if (c->head >= 0)
            plan_head_lives(m, c, i);
        else if (c->judged)
            plan_judged_lives(m, c, i);
        else
            plan_call_lives(m, c, i);
    }
    /* What may be asked for after the pass lives to its end. */
    int last = m->layer_tensor[m->g.layer_count - 1];
    last_to_end(m, last);
    if (m->keep >= 0) last_to_end(m, m->layer_tensor[m->keep]);
}
