/* run: what run.c and perform.c share of a run; private to model/. */
#ifndef TT_RUN_H
#define TT_RUN_H

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

/* perform.c: make a call. True: it needs a sum first, and is made again in the next phase. */
bool perform_forward(tt_run *r, const call *c, int phase);
bool perform_backward(tt_run *r, const call *c, int phase);
bool norm_uses_batch(const tt_run *r, const call *c); /* else its running statistics */

tt_conv_args conv_of(const tt_run *r, const call *c, bool back);
/* head.c: the loss of all rows of `whole`, and its way back, into `sum`. */
void head_judge(tt_run *r, const call *c, const tt_loss_args *whole, float scale,
                tt_loss_args *sum);

/* Is the call's output never whole in this run? */
static inline bool in_blocks(const tt_run *r, const call *c)
{
    return c->judged && r->train;
}

/* tables.c: rows by ids, as embed_forward and bag_forward of the kernels. */
void look_up(const tt_model *m, int table, const tt_embed_args *a, bool bag);
tt_rows rows_of_table(const tt_run *r, const call *c); /* that it yields */

static inline void *at_buffer(const tt_run *r, int buf)
{
    return buf < 0 || r->offset[buf] < 0 ? NULL : r->memory + r->offset[buf];
}

/* Numbers are as the kernels store them, or float32: number_size. Tensor 0 is the batch itself;
 * nothing writes to it. */
static inline void *act(const tt_run *r, int t)
{
    return t ? at_buffer(r, r->m->tensors[t].act) : (void *)(uintptr_t)r->in.x;
}

static inline void *grad(const tt_run *r, int t)
{
    return at_buffer(r, r->m->tensors[t].grad);
}

/* Number `at` of an array of activations or their gradients, as the kernels store them. */
static inline void *beyond(const tt_run *r, const void *x, int64_t at)
{
    return (char *)(uintptr_t)x + at * (int64_t)tt_kernels_element(r->m->k);
}

/* Samples that a buffer has room for: whole slices of lanes. */
static inline int rounded(const tt_model *m, int n)
{
    int lanes = m->k->lanes ? m->k->lanes : 1;
    return (n + lanes - 1) / lanes * lanes;
}

static inline int slices(const tt_run *r)
{
    return r->m->k->lanes ? (r->in.n + r->m->k->lanes - 1) / r->m->k->lanes : 0;
}

#endif
