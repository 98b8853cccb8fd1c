/* exchange: what nodes tell each other.
 *
 * A bucket's way, driven by thread 0 of each rank that has a column, whenever it looks in:
 *
 *   WAITING   until this rank's threads have summed the column over the node
 *   SCATTER   each node's part goes to the node that owns it, and ours comes from all of them
 *   GATHER    (allreduce) we have added up our part, in tree order; it goes to all, theirs comes
 *   DONE      the column is summed over all nodes
 *
 * With PowerSGD it is longer: see factor.c, which has the same stages twice.
 *
 * Messages are waited for by who drives them as long as the world's deadline; each that begins or
 * is through is a sign of life (`moved`) for those of the node who wait for us, which is longer.
 *
 * A part is received where it will be used. The buffer of a send is not written to before the send
 * is done, so GATHER, which receives into what SCATTER sent from, begins when all of SCATTER is
 * over. Buckets are independent of one another: the network always has something to do. */
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

enum { KINDS = 8, TAG_SCATTER = 0, TAG_GATHER, TAG_WEIGHTS, TAG_RESULTS, TAG_ROWS, TAG_SUMS };

struct exchange {
    way *ways;
    int way_count;
    int first_open; /* buckets before it are done */
    tt_op *ops;     /* for what is waited for at once */
    float *inboxes;
    size_t inbox_bytes;
    ranges *targets;       /* of each node: the nodes of the tree it sends */
    int most_targets;      /* of any node */
    range *units, *places; /* of each node */
    const float *term[MOST_TERMS];
    double *sums;          /* of batch norm, of all nodes */
    tt_piece_result *told; /* of all pieces, by rank, and then our own once more */
};

static int tag_of(int kind, int64_t number)
{
    return (int)((number * KINDS + kind) % (TT_TAGS - KINDS));
}

static tt_span part_of(const tt_strategy *s, const bucket *b, int h)
{
    return b->part[s->local * s->node_count + h];
}

/* Room to receive a bucket's sums of all nodes. Factors have their own. */
static size_t inbox_floats(const tt_strategy *s, int index)
{
    if (s->codec.kind == CODEC_LOWRANK) return 0;
    return (size_t)part_of(s, &s->buckets[index], s->node).n * (size_t)s->node_count *
           (size_t)s->buffers;
}

tt_err exchange_open(tt_strategy *s)
{
    exchange *x = take(1, sizeof *x);
    size_t nodes = (size_t)s->node_count, all = (size_t)s->world->size;
    size_t most = 2 * nodes * (size_t)s->buffers, at = 0;

    s->ex = x;
    s->in = take(all, sizeof *s->in);
    s->out = take(all, sizeof *s->out);
    x->ops = take(2 * all + 2 * nodes * (size_t)s->bucket_count, sizeof *x->ops);
    x->told = take(2 * (size_t)s->piece_count, sizeof *x->told);
    if (s->node_count == 1 || !s->column_group) return TT_OK;
    x->ways = take((size_t)s->bucket_count, sizeof *x->ways);
    x->targets = take(nodes, sizeof *x->targets);
    x->units = take(nodes, sizeof *x->units);
    x->places = take(nodes, sizeof *x->places);
    x->sums = take(nodes * (size_t)s->sums_most, sizeof *x->sums);
    x->way_count = s->bucket_count;
    for (int h = 0; h < s->node_count; h++) x->places[h] = s->nodes[h].places;
    for (int b = 0; b < s->bucket_count; b++) {
        x->ways[b].stage = DONE;
        x->ways[b].ops = take(most, sizeof *x->ways[b].ops);
        x->inbox_bytes += inbox_floats(s, b) * sizeof(float);
    }
    x->inboxes = tt_block_alloc(x->inbox_bytes + 64);
    if (!x->inboxes)
        return tt_fail(TT_ENOMEM, "no memory to receive gradients of %d nodes", s->node_count);
    for (int b = 0; b < s->bucket_count; at += inbox_floats(s, b++))
        x->ways[b].inbox = x->inboxes + at;
    return TT_OK;
}

void exchange_close(tt_strategy *s)
{
    exchange *x = s->ex;

    if (!x) return;
    for (int b = 0; b < x->way_count; b++) free(x->ways[b].ops);
    free(x->ways);
    free(x->ops);
    free(x->targets);
    free(x->units);
    free(x->places);
    free(x->sums);
    free(x->told);
    free(s->in);
    free(s->out);
    if (x->inboxes) tt_block_free(x->inboxes, x->inbox_bytes + 64);
    free(x);
}

/* ---- Messages ---- */

void show_life(tt_strategy *s)
{
    tt_flag *f = &rank_at(s, s->local)->moved;
    tt_flag_set(f, tt_flag_get(f) + 1);
}

tt_err exchange_start(tt_strategy *s, int tag, tt_op *ops, int *count)
{
    const tt_group *g = s->column_group;

    for (int i = 0; i < g->size; i++)
        if (i != g->me) s->stats.bytes_sent += (int64_t)s->out[i].bytes;
    show_life(s);
    return tt_trade_start(g, tag, s->in, s->out, ops, count);
}

/* Who does not come is named to the others of the node. */
tt_err exchange_wait(tt_strategy *s, tt_op *ops, int count)
{
    tt_err err;

    for (int i = 0; i < count; i++) {
        if ((err = tt_op_wait(&ops[i]))) {
            strategy_alarm(s, ops[i].group->rank[ops[i].peer]);
            return err;
        }
        show_life(s);
    }
    return TT_OK;
}

/* ---- Gradients ---- */

/* Which nodes of the tree each node will send, of those that have samples in this step; and how to
 * add them all. */
void exchange_begin(tt_strategy *s)
{
    exchange *x = s->ex;
    range all[MOST_TERMS];
    int count = 0;

    if (!x->ways) return;
    x->most_targets = 0;
    for (int h = 0; h < s->node_count; h++) {
        ranges cover;
        x->targets[h].count = 0;
        x->units[h] = s->nodes[h].units;
        if (s->plan.exact)
            tree_cover(s->units, s->nodes[h].units, &cover);
        else
            cover = (ranges){1, {{h, h + 1}}};
        for (int i = 0; i < cover.count; i++) {
            range units = s->plan.exact ? cover.at[i] : s->nodes[h].units;
            bool any = false;
            for (int u = units.a; u < units.b; u++) any |= s->present[u];
            if (!any) continue;
            x->targets[h].at[x->targets[h].count++] = cover.at[i];
            all[count++] = cover.at[i];
        }
        if (x->targets[h].count > x->most_targets) x->most_targets = x->targets[h].count;
    }
    range whole = {0, s->plan.exact ? s->units : s->node_count};
    sum_build(all, count, &whole, 1, &s->all_sum);
    for (int b = 0; b < s->bucket_count; b++) x->ways[b].stage = WAITING;
    x->first_open = 0;
}

/* Compressed there is one vector of each node: exact sums are never. */
static tt_err start_squeezed(tt_strategy *s, int index)
{
    way *w = &s->ex->ways[index];
    const bucket *b = &s->buckets[index];
    bool own = part_of(s, b, s->node).n > 0, present = s->ex->targets[s->node].count > 0;

    for (int h = 0; h < s->node_count; h++) {
        tt_parcel none = {NULL, 0}, *in = &s->in[s->member[h]], *out = &s->out[s->member[h]];
        *in = own && s->ex->targets[h].count ? squeeze_inbox(s, index, h) : none;
        *out = present && part_of(s, b, h).n ? squeeze_part(s, index, h) : none;
    }
    return exchange_start(s, tag_of(TAG_SCATTER, (int64_t)index * MOST_TARGETS), w->ops,
                          &w->op_count);
}

/* Our k-th sums to all, theirs to us. An inbox has those of each node one after the other. */
static tt_err start_targets(tt_strategy *s, int index, int k)
{
    exchange *x = s->ex;
    way *w = &x->ways[index];
    tt_span own = part_of(s, &s->buckets[index], s->node);
    const float *from = grad_at(s, s->local, 0, k);
    float *to = w->inbox;

    for (int h = 0; h < s->node_count; h++) {
        tt_span part = part_of(s, &s->buckets[index], h);
        int theirs = x->targets[h].count, ours = x->targets[s->node].count;
        s->in[s->member[h]] =
            (tt_parcel){to + k * own.n, k < theirs ? (size_t)own.n * sizeof *to : 0};
        s->out[s->member[h]] = (tt_parcel){(void *)(uintptr_t)(from + part.at),
                                           k < ours ? (size_t)part.n * sizeof *from : 0};
        if (h != s->node) to += theirs * own.n;
    }
    return exchange_start(s, tag_of(TAG_SCATTER, (int64_t)index * MOST_TARGETS + k), w->ops,
                          &w->op_count);
}

static tt_err start_scatter(tt_strategy *s, int index)
{
    way *w = &s->ex->ways[index];
    tt_err err = TT_OK;

    w->op_count = w->next = 0;
    w->stage = SCATTER;
    if (s->squeeze) return start_squeezed(s, index);
    for (int k = 0; k < s->ex->most_targets && !err; k++) err = start_targets(s, index, k);
    return err;
}

static tt_err unpack_all(tt_strategy *s, int index, tt_span own, float *in)
{
    tt_err err = TT_OK;

    for (int h = 0; h < s->node_count && !err; h++) {
        if (!s->ex->targets[h].count) continue;
        if (h == s->node) {
            err = squeeze_unpack(s, index, h, grad_at(s, s->local, 0, 0) + own.at);
        } else {
            err = squeeze_unpack(s, index, h, in);
            in += own.n;
        }
    }
    return err;
}

static tt_err add_up(tt_strategy *s, int index)
{
    exchange *x = s->ex;
    tt_span own = part_of(s, &s->buckets[index], s->node);
    float *in = x->ways[index].inbox;
    float *out = grad_at(s, s->local, 0, 0);
    int n = 0;
    tt_err err;

    if (!own.n) return TT_OK;
    if (s->squeeze && (err = unpack_all(s, index, own, in))) return err;
    for (int h = 0; h < s->node_count; h++)
        for (int k = 0; k < x->targets[h].count; k++) {
            if (h == s->node) {
                x->term[n++] = grad_at(s, s->local, 0, k);
            } else {
                x->term[n++] = in - own.at; /* element i of the flat array is at in[i - own.at] */
                in += own.n;
            }
        }
    sum_run(&s->all_sum, s->k, x->term, &out, own.at, own.n);
    return TT_OK;
}

/* The sums, compressed: ours to all, theirs to us; what they say is taken when all are there. */
static tt_err start_squeezed_gather(tt_strategy *s, int index)
{
    way *w = &s->ex->ways[index];
    tt_parcel none = {NULL, 0}, own = none;

    if (part_of(s, &s->buckets[index], s->node).n) own = squeeze_sum(s, index);
    for (int h = 0; h < s->node_count; h++) {
        bool any = part_of(s, &s->buckets[index], h).n > 0;
        s->in[s->member[h]] = any ? squeeze_sum_inbox(s, index, h) : none;
        s->out[s->member[h]] = own;
    }
    return exchange_start(s, tag_of(TAG_GATHER, index), w->ops, &w->op_count);
}

static tt_err unpack_sums(tt_strategy *s, int index)
{
    tt_err err = TT_OK;

    for (int h = 0; h < s->node_count && !err; h++)
        if (part_of(s, &s->buckets[index], h).n) err = squeeze_unpack_sum(s, index, h);
    return err;
}

/* `base` is a flat array: our part of it goes to all nodes, theirs come to their places. */
static tt_err start_gather(tt_strategy *s, int index, int kind, float *base, tt_op *ops, int *count)
{
    tt_span own = part_of(s, &s->buckets[index], s->node);

    for (int h = 0; h < s->node_count; h++) {
        tt_span part = part_of(s, &s->buckets[index], h);
        s->in[s->member[h]] = (tt_parcel){base + part.at, (size_t)part.n * sizeof *base};
        s->out[s->member[h]] = (tt_parcel){base + own.at, (size_t)own.n * sizeof *base};
    }
    return exchange_start(s, tag_of(kind, index), ops, count);
}

static bool column_reduced(const tt_strategy *s, int index)
{
    for (int t = 0; t < node_threads(s, s->local); t++)
        if (!tt_flag_has(&seat_at(s, s->local, t)->reduced, s->base + (uint32_t)index + 1))
            return false;
    return true;
}

static tt_err advance(tt_strategy *s, int index)
{
    way *w = &s->ex->ways[index];
    tt_err err;

    if (w->stage == WAITING) {
        if (!column_reduced(s, index)) return TT_OK;
        w->begun = tt_clock_s();
        if ((err = s->factor ? factor_next(s, index, w, s->ex->targets[s->node].count > 0)
                             : start_scatter(s, index)))
            return err;
    }
    while (w->stage != DONE) {
        while (w->next < w->op_count) {
            tt_op *op = &w->ops[w->next];
            if ((err = tt_op_test(op))) {
                strategy_alarm(s, op->group->rank[op->peer]);
                return err;
            }
            if (!op->done) return TT_OK;
            w->next++;
            show_life(s);
        }
        if (s->factor) {
            if ((err = factor_next(s, index, w, true))) return err;
            continue;
        }
        if (w->stage == SCATTER && (err = add_up(s, index))) return err;
        if (w->stage == GATHER && s->squeeze && (err = unpack_sums(s, index))) return err;
        if (w->stage == GATHER || sharded(s)) {
            w->stage = DONE;
            break;
        }
        w->op_count = w->next = 0;
        if ((err = s->squeeze ? start_squeezed_gather(s, index)
                              : start_gather(s, index, TAG_GATHER, grad_at(s, s->local, 0, 0),
                                             w->ops, &w->op_count)))
            return err;
        w->stage = GATHER;
    }
    return TT_OK;
}

tt_err exchange_poll(tt_strategy *s)
{
    exchange *x = s->ex;
    tt_err err;

    if (!x->ways) return TT_OK;
    for (int b = x->first_open; b < s->bucket_count; b++) {
        if (x->ways[b].stage != DONE) {
            if ((err = advance(s, b)))
                return tt_context(err, "step %lld, bucket %d", (long long)s->step + 1, b);
            if (x->ways[b].stage == DONE && trace_on(s))
                trace_add(s, -1, TRACE_BUCKET, b, x->ways[b].begun, tt_clock_s());
        }
        if (x->ways[b].stage == WAITING) break; /* nor are those after it */
    }
    int was = x->first_open;
    while (x->first_open < s->bucket_count && x->ways[x->first_open].stage == DONE) x->first_open++;
    if (x->first_open > was)
        tt_flag_set(&rank_at(s, s->local)->summed, s->base + (uint32_t)x->first_open);
    return TT_OK;
}

/* Who keeps the exchange waiting: the other end of the first message that is not through; -1: none
 * is under way. */
int exchange_missing(const tt_strategy *s)
{
    const exchange *x = s->ex;

    for (int b = x->first_open; x->ways && b < s->bucket_count; b++) {
        const way *w = &x->ways[b];
        if (w->stage != WAITING && w->stage != DONE && w->next < w->op_count)
            return s->column_group->rank[w->ops[w->next].peer];
    }
    return -1;
}

bool exchange_done(const tt_strategy *s)
{
    return !s->ex->ways || s->ex->first_open == s->bucket_count;
}

/* ---- New weights ---- */

tt_err exchange_weights(tt_strategy *s)
{
    exchange *x = s->ex;
    int count = 0;
    tt_err err;

    if (!x->ways) return TT_OK;
    for (int b = 0; b < s->bucket_count; b++)
        if ((err = start_gather(s, b, TAG_WEIGHTS, w_at(s, s->local, !s->half), x->ops, &count)))
            return err;
    if ((err = exchange_wait(s, x->ops, count)))
        return tt_context(err, "step %lld, new weights", (long long)s->step + 1);
    return TT_OK;
}

/* ---- Small things ---- */

/* Between the leaders of all nodes: what is at each node's own place in `base`, `each` bytes each.
 */
static tt_err gather_places(tt_strategy *s, int kind, void *base, size_t each, const range *place)
{
    range own = place[s->node];
    int count = 0;
    tt_err err;

    for (int h = 0; h < s->node_count; h++) {
        range p = place[h];
        s->in[s->member[h]] =
            (tt_parcel){(char *)base + (size_t)p.a * each, (size_t)(p.b - p.a) * each};
        s->out[s->member[h]] =
            (tt_parcel){(char *)base + (size_t)own.a * each, (size_t)(own.b - own.a) * each};
    }
    if ((err = exchange_start(s, tag_of(kind, 0), s->ex->ops, &count))) return err;
    return exchange_wait(s, s->ex->ops, count);
}

tt_err exchange_results(tt_strategy *s)
{
    exchange *x = s->ex;
    tt_err err;

    if (s->node_count == 1 || s->local) return TT_OK;
    if ((err = gather_places(s, TAG_RESULTS, results_of(s), sizeof(tt_result), x->units)) ||
        (err = gather_places(s, TAG_ROWS, rows_of(s), sizeof(row), x->places)))
        return tt_context(err, "step %lld, results", (long long)s->step + 1);
    return TT_OK;
}

/* A leader's sums of its node become those of all, added in node order. */
tt_err exchange_sums(tt_strategy *s, double *value, int n)
{
    double *all = s->ex->sums;
    size_t bytes = (size_t)n * sizeof *value;
    int count = 0;
    tt_err err;

    for (int h = 0; h < s->node_count; h++) {
        s->in[s->member[h]] = (tt_parcel){all + h * n, bytes};
        s->out[s->member[h]] = (tt_parcel){value, bytes};
    }
    if ((err = exchange_start(s, tag_of(TAG_SUMS, 0), s->ex->ops, &count)) ||
        (err = exchange_wait(s, s->ex->ops, count)))
        return tt_context(err, "step %lld, sums of batch norm", (long long)s->step + 1);
    memcpy(all + s->node * n, value, bytes);
    memset(value, 0, bytes);
    for (int h = 0; h < s->node_count; h++)
        for (int i = 0; i < n; i++) value[i] += all[h * n + i];
    return TT_OK;
}

/* ---- What pieces tell ---- */

/* Each rank tells all others of those that it has updated, in order. */
tt_err exchange_pieces(tt_strategy *s)
{
    const tt_world *w = s->world;
    tt_piece_result *to = s->ex->told, *own = to + s->piece_count;
    int count = 0;
    tt_err err;

    for (int i = 0; i < s->own_count; i++) own[i] = tt_optim_told(s->optim, s->own_pieces[i]);
    for (int r = 0; r < w->size; r++) {
        s->in[r].bytes = 0;
        s->out[r] = (tt_parcel){own, (size_t)s->own_count * sizeof *own};
    }
    for (int i = 0; i < s->piece_count; i++) s->in[tt_strategy_owner(s, i)].bytes += sizeof *to;
    for (int r = 0; r < w->size; r++) {
        s->in[r].data = to;
        to += s->in[r].bytes / sizeof *to;
    }
    show_life(s);
    if ((err = tt_trade_start(tt_world_all(w), TAG_PIECES, s->in, s->out, s->ex->ops, &count)) ||
        (err = exchange_wait(s, s->ex->ops, count)))
        return tt_context(err, "step %lld, norms", (long long)s->step + 1);
    for (int i = 0; i < s->piece_count; i++) {
        int owner = tt_strategy_owner(s, i);
        tt_piece_result *next = s->in[owner].data;
        if (owner != w->rank) tt_optim_tell(s->optim, i, next);
        s->in[owner].data = next + 1;
    }
    return TT_OK;
}
