/* squeeze: what nodes send each other in fewer bytes.
 *
 * SCATTER: a node encodes its sum of each part, its own part too, and everybody adds up what comes
 * out of the bytes; what they do not say stays in `residual` and is added the next time.
 * GATHER: the owner of a part encodes the sum over all nodes, and takes for itself what comes out,
 * so that all have the same; the difference stays in `owed`. Sums of topk vectors are sparse and
 * travel as they are.
 *
 * Both residuals are of gradient sums, so they may be added up: a checkpoint has their total, and
 * who resumes gives it to the first node, each rank what it is to send. */
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

/* Vectors (biases, norms and their running statistics) are few numbers that matter: they travel as
 * they are. */
static const codec *codec_of(const tt_strategy *s, int piece)
{
    static const codec none = {.kind = CODEC_NONE};
    int count;
    const tt_param *p = &tt_model_params(s->model, &count)[tt_optim_piece(s->optim, piece).param];

    return p->rank < 2 || p->role == TT_STAT ? &none : &s->codec;
}

static range pieces_of(const tt_strategy *s, int index, int h)
{
    return s->buckets[index].pieces[s->local * s->node_count + h];
}

static size_t piece_bytes(const tt_strategy *s, int piece, bool back)
{
    const codec *c = codec_of(s, piece);
    int64_t n = tt_optim_piece(s->optim, piece).n;

    return back && c->kind == CODEC_TOPK ? codec_sparse_bytes(c, n, s->node_count)
                                         : codec_bytes(c, n);
}

/* Of node h's part of a bucket; `back`: of its sum over all nodes. */
static size_t part_bytes(const tt_strategy *s, int index, int h, bool back)
{
    range r = pieces_of(s, index, h);
    size_t bytes = 0;

    for (int p = r.a; p < r.b; p++) bytes += piece_bytes(s, p, back);
    return bytes;
}

static squeeze_place *place_of(const tt_strategy *s, int index, int h)
{
    return &s->squeeze->places[index * s->node_count + h];
}

/* Where everything lies; sets out_bytes and in_bytes. */
static void lay_out(tt_strategy *s)
{
    squeeze *q = s->squeeze;

    for (int b = 0; b < s->bucket_count; b++)
        for (int h = 0; h < s->node_count; h++) {
            size_t send = part_bytes(s, b, h, false), back = part_bytes(s, b, h, true);
            *place_of(s, b, h) = (squeeze_place){q->out_bytes, send, back, q->in_bytes};
            q->out_bytes += send > back ? send : back;
            q->in_bytes += part_bytes(s, b, s->node, false);
        }
}

tt_err squeeze_open(tt_strategy *s)
{
    squeeze *q = take(1, sizeof *q);
    size_t flat = (size_t)s->size * sizeof(float);

    s->squeeze = q;
    q->places = take((size_t)(s->bucket_count * s->node_count), sizeof *q->places);
    q->out_bytes = q->in_bytes = q->scratch_bytes = 64;
    for (int p = 0; p < s->piece_count && s->codec.kind != CODEC_LOWRANK; p++) {
        size_t scratch = codec_scratch(&s->codec, tt_optim_piece(s->optim, p).n);
        if (scratch > q->scratch_bytes) q->scratch_bytes = scratch;
    }
    if (s->codec.kind != CODEC_LOWRANK) lay_out(s);
    q->residual = tt_block_alloc(flat);
    q->owed = tt_block_alloc(flat);
    q->total = s->world->rank ? NULL : tt_block_alloc(flat);
    q->out = tt_block_alloc(q->out_bytes);
    q->in = tt_block_alloc(q->in_bytes);
    q->scratch = tt_block_alloc(q->scratch_bytes);
    if (!q->residual || !q->owed || (!q->total && !s->world->rank) || !q->out || !q->in ||
        !q->scratch)
        return tt_fail(TT_ENOMEM, "no memory for compression and its residuals");
    return TT_OK;
}

void squeeze_close(tt_strategy *s)
{
    squeeze *q = s->squeeze;
    size_t flat = (size_t)s->size * sizeof(float);

    if (!q) return;
    if (q->residual) tt_block_free(q->residual, flat);
    if (q->owed) tt_block_free(q->owed, flat);
    if (q->total) tt_block_free(q->total, flat);
    if (q->out) tt_block_free(q->out, q->out_bytes);
    if (q->in) tt_block_free(q->in, q->in_bytes);
    if (q->scratch) tt_block_free(q->scratch, q->scratch_bytes);
    free(q->places);
    free(q);
}

tt_parcel squeeze_part(tt_strategy *s, int index, int h)
{
    squeeze *q = s->squeeze;
    const squeeze_place *place = place_of(s, index, h);
    const float *from = grad_at(s, s->local, 0, 0);
    range r = pieces_of(s, index, h);
    uint8_t *at = q->out + place->out;

    for (int i = r.a; i < r.b; at += piece_bytes(s, i++, false)) {
        tt_piece p = tt_optim_piece(s->optim, i);
        codec_encode(codec_of(s, i), p.n, from + p.at, q->residual + p.at, at, q->scratch);
    }
    return (tt_parcel){q->out + place->out, place->send};
}

tt_parcel squeeze_inbox(tt_strategy *s, int index, int h)
{
    return (tt_parcel){s->squeeze->in + place_of(s, index, h)->in,
                       place_of(s, index, s->node)->send};
}

tt_err squeeze_unpack(tt_strategy *s, int index, int h, float *to)
{
    const squeeze_place *place = place_of(s, index, h);
    range r = pieces_of(s, index, s->node);
    const uint8_t *wire = h == s->node ? s->squeeze->out + place->out : s->squeeze->in + place->in;
    int64_t first = r.a < r.b ? tt_optim_piece(s->optim, r.a).at : 0;
    tt_err err = TT_OK;

    for (int i = r.a; i < r.b && !err; wire += piece_bytes(s, i++, false)) {
        tt_piece p = tt_optim_piece(s->optim, i);
        err = codec_decode(codec_of(s, i), p.n, wire, piece_bytes(s, i, false), to + p.at - first);
    }
    return err;
}

tt_parcel squeeze_sum(tt_strategy *s, int index)
{
    squeeze *q = s->squeeze;
    const squeeze_place *place = place_of(s, index, s->node);
    const float *sum = grad_at(s, s->local, 0, 0);
    range r = pieces_of(s, index, s->node);
    uint8_t *at = q->out + place->out;

    for (int i = r.a; i < r.b; at += piece_bytes(s, i++, true)) {
        tt_piece p = tt_optim_piece(s->optim, i);
        const codec *c = codec_of(s, i);
        if (c->kind == CODEC_TOPK)
            codec_sparse_encode(c, p.n, s->node_count, sum + p.at, at);
        else
            codec_encode(c, p.n, sum + p.at, q->owed + p.at, at, q->scratch);
    }
    return (tt_parcel){q->out + place->out, place->back};
}

tt_parcel squeeze_sum_inbox(tt_strategy *s, int index, int h)
{
    const squeeze_place *place = place_of(s, index, h);
    return (tt_parcel){s->squeeze->out + place->out, place->back}; /* what it had has arrived */
}

tt_err squeeze_unpack_sum(tt_strategy *s, int index, int h)
{
    range r = pieces_of(s, index, h);
    const uint8_t *wire = s->squeeze->out + place_of(s, index, h)->out;
    float *to = grad_at(s, s->local, 0, 0);
    tt_err err = TT_OK;

    for (int i = r.a; i < r.b && !err; wire += piece_bytes(s, i++, true)) {
        tt_piece p = tt_optim_piece(s->optim, i);
        const codec *c = codec_of(s, i);
        size_t bytes = piece_bytes(s, i, true);
        err = c->kind == CODEC_TOPK
                  ? codec_sparse_decode(c, p.n, s->node_count, wire, bytes, to + p.at)
                  : codec_decode(c, p.n, wire, bytes, to + p.at);
    }
    return err;
}

/* ---- As state ---- */

enum { PART = 1 << 20 };

static bool has_column(const tt_strategy *s, int rank)
{
    for (int h = 0; h < s->node_count; h++)
        for (int l = 0; l < s->columns; l++)
            if (s->nodes[h].rank[l] == rank) return true;
    return false;
}

/* Rank 0 gets the total of all residuals. */
tt_err squeeze_collect(tt_strategy *s)
{
    const tt_group *all = tt_world_all(s->world);
    squeeze *q = s->squeeze;
    float *buffer;
    tt_op op;
    tt_err err = TT_OK;

    if (!q) return TT_OK; /* it has no column, and nothing to owe */
    if (!(buffer = malloc(PART * sizeof *buffer))) tt_mem_out(PART * sizeof *buffer);
    for (int64_t at = 0; at < s->size && !err; at += PART) {
        int64_t n = s->size - at < PART ? s->size - at : PART;
        size_t bytes = (size_t)n * sizeof *buffer;
        for (int64_t i = 0; i < n; i++) buffer[i] = q->residual[at + i] + q->owed[at + i];
        if (all->me) {
            if (!(err = tt_send_start(all, 0, TAG_STATE, buffer, bytes, &op)))
                err = tt_op_wait(&op);
            continue;
        }
        memcpy(q->total + at, buffer, bytes);
        for (int r = 1; r < all->size && !err; r++) {
            if (!has_column(s, r)) continue;
            if ((err = tt_recv_start(all, r, TAG_STATE, buffer, bytes, &op)) ||
                (err = tt_op_wait(&op)))
                break;
            for (int64_t i = 0; i < n; i++) q->total[at + i] += buffer[i];
        }
    }
    free(buffer);
    return err;
}

/* What rank 0 has read is sent by the first node from now on, by who has the column; the others
 * begin with nothing. */
tt_err squeeze_spread(tt_strategy *s)
{
    squeeze *q = s->squeeze;
    size_t flat = (size_t)s->size * sizeof(float);
    tt_err err = TT_OK;

    if (!q) return TT_OK;
    memset(q->residual, 0, flat);
    memset(q->owed, 0, flat);
    for (int i = 0; i < s->piece_count && !err; i++) {
        tt_piece p = tt_optim_piece(s->optim, i);
        int to = s->nodes[0].rank[s->piece_column[i]];
        if (to)
            err = move_piece(s, q->total ? q->total : q->residual, i, 0, to);
        else if (q->total)
            memcpy(q->residual + p.at, q->total + p.at, (size_t)p.n * sizeof *q->total);
    }
    return err;
}
