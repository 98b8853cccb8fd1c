/* head: a large last layer and its loss, computed together in blocks of rows.
 *
 * The scores of 1,024 tokens for a vocabulary of 50,257 are 206 MB, and so is their gradient; both
 * are needed for a moment only, because a loss writes its gradient on the way forward. So where
 * nobody else looks at the scores of a dense layer, a training run has them for a block of rows at
 * a time: scores, loss, gradient of the scores, and at once the layer's own way back, into the
 * gradient of its input and of its weights. Nothing is computed twice; what it costs is that the
 * gradient of the weights is added to once a block. When the layer's turn comes on the way back,
 * nothing is left to do but to say that its gradient is final.
 *
 * In bf16 the layer stores its scores as such, the loss takes them widened, and the layer's way
 * back takes their gradient rounded: in the same memory.
 *
 * Runs that are not for training keep the scores whole: somebody may ask for them. */
#include <math.h>
#include <string.h>

#include "run.h"

/* Numbers of a block: 32 MB for the scores and as much for their gradient. Rows in a block are a
 * multiple of STEP, so that kernels see few remainders. In bf16 a block is twice as large: products
 * may be ten times as fast, and adding to the gradient of the weights is as slow as it is. */
enum { BLOCK = 8 << 20, STEP = 32 };

static bool is_half(const tt_model *m)
{
    return m->k->precision == TT_IN_BF16;
}

/* Does anything but this call take tensor t? */
static bool others_take(const tt_model *m, int t, const call *own)
{
    for (int i = 0; i < m->call_count; i++)
        for (int k = 0; k < m->calls[i].in_count; k++)
            if (&m->calls[i] != own && m->calls[i].in[k] == t) return true;
    return m->keep >= 0 && m->layer_tensor[m->keep] == t;
}

int head_of(const tt_model *m, const call *c)
{
    int t = c->in[0], h = m->call_count - 1;

    while (h >= 0 && (m->calls[h].kind == CALL_LOSS || m->calls[h].out != t)) h--;
    if (h < 0 || m->calls[h].kind != CALL_CONV || !c->in_grad[0] || c->in_add[0]) return -1;
    const call *head = &m->calls[h];
    const tt_conv *v = &head->conv;
    if (head->rows < 2 || head->rows != c->rows || v->relu || v->pool || v->turned) return -1;
    if (m->g.losses[c->loss].target != BY_LABEL || head->in_add[0] || others_take(m, t, c))
        return -1;
    return m->samples * c->rows * c->d > BLOCK ? h : -1;
}

int64_t head_block(const tt_model *m, const call *c)
{
    int64_t rows = BLOCK * (is_half(m) ? 2 : 1) / c->d / STEP * STEP;
    return rows < STEP ? STEP : rows;
}

/* ---- Running ---- */

/* Where it first goes wrong, if somebody asks: the scores are gone when the call is over. */
static void look_at_block(tt_run *r, const call *head, const float *score, int64_t first, int n,
                          int64_t d)
{
    tt_fault *f = r->fault;

    if (!f || (f->layer && f->layer != r->m->g.layers[head->layer].name)) return;
    for (int i = 0; i < n; i++) {
        int sample = (int)((first + i) / head->rows), seen = f->samples;
        bool fine = true;
        for (int64_t k = 0; k < d && fine; k++) fine = isfinite(score[i * d + k]);
        if (fine) continue;
        f->layer = r->m->g.layers[head->layer].name;
        if (seen && f->last == sample) continue;
        f->last = sample;
        if (seen < TT_FAULT_SAMPLES) f->sample[seen] = sample;
        f->samples++;
    }
}

/* Rows first .. first + n of the layer, forward or back. */
static tt_conv_args rows_of_head(const tt_run *r, const call *c, const call *head, int64_t first,
                                 int n)
{
    tt_conv_args a = conv_of(r, head, r->pass == TT_PASS_TRAIN);
    int64_t in = head->conv.win.c;

    a.n = n;
    a.x = beyond(r, a.x, first * in);
    a.y = at_buffer(r, c->block);
    /* In the upper half, from where they are widened one after the other. */
    if (is_half(r->m)) a.y = beyond(r, a.y, n * c->d);
    a.dy = at_buffer(r, c->block_grad);
    a.scratch = at_buffer(r, c->scratch);
    if (a.dx) a.dx = beyond(r, a.dx, first * in);
    a.dw_add |= first > 0;
    return a;
}

static void add_block(tt_loss_args *to, const tt_loss_args *from)
{
    to->loss += from->loss;
    to->weight += from->weight;
    to->correct += from->correct;
    to->top5 += from->top5;
    to->rows += from->rows;
}

void head_judge(tt_run *r, const call *c, const tt_loss_args *whole, float scale, tt_loss_args *sum)
{
    const call *head = &r->m->calls[c->head];
    const tt_kernels *k = r->m->k;
    const bool back = r->pass == TT_PASS_TRAIN, half = is_half(r->m);
    const int block = (int)head_block(r->m, c);
    float *score = at_buffer(r, c->block), *slope = at_buffer(r, c->block_grad);

    for (int64_t at = 0; at < whole->n; at += block) {
        int n = whole->n - at < block ? (int)(whole->n - at) : block;
        tt_conv_args a = rows_of_head(r, c, head, at, n);
        tt_loss_args l = *whole;
        k->conv_forward(&head->conv, &a);
        if (half) k->widen(n * c->d, a.y, score);
        look_at_block(r, head, score, at, n, c->d);
        l.n = n;
        l.x = score;
        l.dx = back ? slope : NULL;
        l.label += at;
        k->loss(&l);
        add_block(sum, &l);
        if (!back) continue;
        if (scale != 1) k->scale(n * c->d, scale, slope);
        if (half) k->narrow(n * c->d, slope, (void *)slope, false);
        k->conv_backward(&head->conv, &a);
    }
}
