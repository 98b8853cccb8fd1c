/* factor: PowerSGD: matrices travel as two thin factors, summed one after the other.
 *
 * A bucket's way between nodes:
 *   WAITING   until the node's sum is there. v = sum + residual; P = v Q, by the Q of the step
 *             before
 *   SCATTER   P, and all that is no matrix, summed over the nodes: each adds up an even part ...
 *   GATHER    ... and gives it to all. Then P is made orthonormal, Q = v' P, residual = v - P Q'
 *   SCATTER2, GATHER2   the same for Q. Then the gradient is P Q'
 *
 * One rank of each node does it, for whole tensors. All compute the same from the same sums, so
 * they stay equal. A tensor for which two factors are no smaller travels as it is, and with it what
 * another compression may have left for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"
#include "strategy/lowrank.h"

typedef struct matrix {
    int64_t at, rows, cols;
    int64_t p, q; /* where its factors are in the bucket's vectors */
    int param;
} matrix;

typedef struct bundle { /* of a bucket */
    matrix *matrices;
    int matrix_count;
    tt_span *plain; /* spans that travel as they are, after the P's */
    int plain_count;
    int64_t first, second; /* floats of the two vectors */
    float *one, *two, *inbox;
} bundle;

struct factor {
    bundle *bundles;
    int count;
    float *memory, *product;
    size_t bytes, product_bytes;
};

static tt_span even(int64_t n, int parts, int i)
{
    int64_t a = n * i / parts, b = n * (i + 1) / parts;
    return (tt_span){a, b - a};
}

/* (out, in, kh, kw) is a matrix of out rows. */
static bool as_matrix(const tt_strategy *s, const tt_param *p, int64_t *rows, int64_t *cols)
{
    if (p->rank < 2 || p->role == TT_STAT) return false;
    *rows = p->shape[0];
    *cols = p->n / (p->shape[0] ? p->shape[0] : 1);
    return *rows > 0 && lowrank_pays(*rows, *cols, s->codec.rank);
}

static void fill_bundle(const tt_strategy *s, const bucket *b, bundle *u)
{
    const tt_param *params;
    int count, last = -1, most = b->end_piece - b->first_piece;

    params = tt_model_params(s->model, &count);
    u->matrices = calloc((size_t)most, sizeof *u->matrices);
    u->plain = calloc((size_t)most, sizeof *u->plain);
    if (!u->matrices || !u->plain) tt_mem_out((size_t)most * sizeof *u->matrices);
    for (int i = b->first_piece; i < b->end_piece; i++) {
        tt_piece piece = tt_optim_piece(s->optim, i);
        const tt_param *p = &params[piece.param];
        matrix m = {.at = p->at, .param = piece.param, .p = u->first, .q = u->second};
        if (piece.param == last) continue;
        last = piece.param;
        if (!as_matrix(s, p, &m.rows, &m.cols)) {
            u->plain[u->plain_count++] = (tt_span){p->at, p->n};
            continue;
        }
        u->matrices[u->matrix_count++] = m;
        u->first += m.rows * s->codec.rank;
        u->second += m.cols * s->codec.rank;
    }
    for (int i = 0; i < u->plain_count; i++) u->first += u->plain[i].n;
}

tt_err factor_open(tt_strategy *s)
{
    struct factor *f = calloc(1, sizeof *f);
    int64_t floats = 0, most = 0, at = 0;

    if (!f || !(f->bundles = calloc((size_t)s->bucket_count, sizeof *f->bundles)))
        tt_mem_out(sizeof *f);
    s->factor = f;
    f->count = s->bucket_count;
    for (int b = 0; b < f->count; b++) {
        bundle *u = &f->bundles[b];
        fill_bundle(s, &s->buckets[b], u);
        int64_t longer = u->first > u->second ? u->first : u->second;
        /* both vectors, and everybody's numbers for our even part of the longer one */
        floats += u->first + u->second + longer + s->node_count + 32;
        for (int i = 0; i < u->matrix_count; i++)
            if (u->matrices[i].rows * u->matrices[i].cols > most)
                most = u->matrices[i].rows * u->matrices[i].cols;
    }
    f->bytes = (size_t)floats * sizeof(float) + 64;
    f->product_bytes = (size_t)most * sizeof(float) + 64;
    f->memory = tt_block_alloc(f->bytes);
    f->product = tt_block_alloc(f->product_bytes);
    if (!f->memory || !f->product) return tt_fail(TT_ENOMEM, "no memory for factors of gradients");
    for (int b = 0; b < f->count; b++) {
        bundle *u = &f->bundles[b];
        int64_t longer = u->first > u->second ? u->first : u->second;
        u->one = f->memory + at;
        u->two = u->one + u->first;
        u->inbox = u->two + u->second;
        at += u->first + u->second + longer + s->node_count + 32;
        for (int i = 0; i < u->matrix_count; i++)
            lowrank_start(u->matrices[i].cols, s->codec.rank,
                          s->seed + (uint64_t)u->matrices[i].param, u->two + u->matrices[i].q);
    }
    return TT_OK;
}

void factor_close(tt_strategy *s)
{
    struct factor *f = s->factor;

    if (!f) return;
    for (int b = 0; b < f->count; b++) {
        free(f->bundles[b].matrices);
        free(f->bundles[b].plain);
    }
    if (f->memory) tt_block_free(f->memory, f->bytes);
    if (f->product) tt_block_free(f->product, f->product_bytes);
    free(f->bundles);
    free(f);
}

void factor_move(tt_strategy *s, float *flat, bool back)
{
    for (int b = 0; b < s->factor->count; b++) {
        const bundle *u = &s->factor->bundles[b];
        for (int i = 0; i < u->matrix_count; i++) { /* it is smaller: else it would not pay */
            const matrix *m = &u->matrices[i];
            float *q = u->two + m->q, *at = flat + m->at;
            memcpy(back ? q : at, back ? at : q, (size_t)(m->cols * s->codec.rank) * sizeof *q);
        }
    }
}

/* ---- Between the sums ---- */

static void make_first(tt_strategy *s, const bundle *u, bool present)
{
    float *grad = grad_at(s, s->local, 0, 0), *to = u->one, *residual = s->squeeze->residual;
    int r = s->codec.rank;

    for (int i = 0; i < u->matrix_count; i++) {
        const matrix *m = &u->matrices[i];
        int64_t n = m->rows * m->cols;
        float *v = grad + m->at;
        if (!present) memset(v, 0, (size_t)n * sizeof *v);
        s->k->add(n, v, residual + m->at, v);
        lowrank_renew(m->cols, r, s->seed + (uint64_t)m->param + (uint64_t)s->step * 1000003,
                      u->two + m->q);
        lowrank_p(m->rows, m->cols, r, v, u->two + m->q, to + m->p);
        if (i + 1 == u->matrix_count) to += m->p + m->rows * r;
    }
    for (int i = 0; i < u->plain_count; to += u->plain[i++].n) {
        tt_span p = u->plain[i];
        size_t bytes = (size_t)p.n * sizeof *to;
        memcpy(to, residual + p.at, bytes);
        memset(residual + p.at, 0, bytes);
        if (present) s->k->add(p.n, to, grad + p.at, to);
    }
}

static void make_second(tt_strategy *s, const bundle *u)
{
    float *grad = grad_at(s, s->local, 0, 0), *product = s->factor->product;
    int r = s->codec.rank;

    for (int i = 0; i < u->matrix_count; i++) {
        const matrix *m = &u->matrices[i];
        float *v = grad + m->at, *residual = s->squeeze->residual + m->at, *p = u->one + m->p,
              *q = u->two + m->q;
        lowrank_orthonormalise(m->rows, r, p);
        lowrank_q(m->rows, m->cols, r, v, p, q);
        lowrank_product(m->rows, m->cols, r, p, q, product);
        for (int64_t k = 0; k < m->rows * m->cols; k++) {
            float left = v[k] - product[k];
            residual[k] = isfinite(left) ? left : 0; /* of a step that ran away nothing stays */
        }
    }
}

static void put_back(tt_strategy *s, const bundle *u)
{
    float *grad = grad_at(s, s->local, 0, 0);
    const float *from = u->one;
    int r = s->codec.rank;

    for (int i = 0; i < u->matrix_count; i++) {
        const matrix *m = &u->matrices[i];
        lowrank_product(m->rows, m->cols, r, u->one + m->p, u->two + m->q, grad + m->at);
        from = u->one + m->p + m->rows * r;
    }
    for (int i = 0; i < u->plain_count; from += u->plain[i++].n)
        memcpy(grad + u->plain[i].at, from, (size_t)u->plain[i].n * sizeof *grad);
}

/* ---- The sums ---- */

static tt_err start_sum(tt_strategy *s, way *w, float *x, int64_t n, float *inbox, int tag)
{
    tt_span own = even(n, s->node_count, s->node);

    for (int h = 0; h < s->node_count; h++) {
        tt_span p = even(n, s->node_count, h);
        s->in[s->member[h]] = (tt_parcel){inbox + h * own.n, (size_t)own.n * sizeof *x};
        s->out[s->member[h]] = (tt_parcel){x + p.at, (size_t)p.n * sizeof *x};
    }
    w->op_count = w->next = 0;
    return exchange_start(s, tag, w->ops, &w->op_count);
}

static tt_err start_return(tt_strategy *s, way *w, float *x, int64_t n, const float *inbox, int tag)
{
    tt_span own = even(n, s->node_count, s->node);

    for (int64_t i = 0; i < own.n; i++) { /* in node order */
        float sum = s->node ? inbox[i] : x[own.at + i];
        for (int h = 1; h < s->node_count; h++)
            sum += h == s->node ? x[own.at + i] : inbox[h * own.n + i];
        x[own.at + i] = sum;
    }
    for (int h = 0; h < s->node_count; h++) {
        tt_span p = even(n, s->node_count, h);
        s->in[s->member[h]] = (tt_parcel){x + p.at, (size_t)p.n * sizeof *x};
        s->out[s->member[h]] = (tt_parcel){x + own.at, (size_t)own.n * sizeof *x};
    }
    w->op_count = w->next = 0;
    return exchange_start(s, tag, w->ops, &w->op_count);
}

tt_err factor_next(tt_strategy *s, int index, way *w, bool present)
{
    bundle *u = &s->factor->bundles[index];
    int tag = 8 * index; /* and the next: as of the exchange, which has no use for them then */
    tt_err err = TT_OK;

    switch (w->stage) {
    case WAITING:
        make_first(s, u, present);
        err = start_sum(s, w, u->one, u->first, u->inbox, tag);
        w->stage = SCATTER;
        break;
    case SCATTER:
        err = start_return(s, w, u->one, u->first, u->inbox, tag + 1);
        w->stage = GATHER;
        break;
    case GATHER:
        make_second(s, u);
        err = start_sum(s, w, u->two, u->second, u->inbox, tag);
        w->stage = SCATTER2;
        break;
    case SCATTER2:
        err = start_return(s, w, u->two, u->second, u->inbox, tag + 1);
        w->stage = GATHER2;
        break;
    default:
        put_back(s, u);
        w->stage = DONE;
    }
    return err;
}
