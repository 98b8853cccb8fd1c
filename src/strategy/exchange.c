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
 * A part is received where it will be used. The buffer of a send is not written to before the send
 * is done, so GATHER, which receives into what SCATTER sent from, begins when all of SCATTER is
 * over. Buckets are independent of one another: the network always has something to do. */
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

enum { KINDS = 8, TAG_SCATTER = 0, TAG_GATHER, TAG_WEIGHTS, TAG_RESULTS, TAG_ROWS };

struct exchange {
    way *ways;
    int way_count;
    int first_open; /* buckets before it are done */
    tt_op *ops;     /* for what is waited for at once */
    float *inboxes;
    size_t inbox_bytes;
    ranges *targets;       /* of each node: the nodes of the tree it sends */
    range *units, *places; /* of each node */
    const float *term[MOST_TERMS];
    char *blob; /* everybody's, for a gather */
    size_t blob_bytes;
};

static int tag_of(int kind, int64_t number)
{
    return (int)((number * KINDS + kind) % (TT_TAGS - KINDS));
}

int column_at(const tt_strategy *s, int h)
{
    int i = 0;
    while (s->column_group->rank[i] != s->nodes[h].rank[s->local]) i++;
    return i;
}

static tt_span part_of(const tt_strategy *s, const bucket *b, int h)
{
    return b->part[s->local * s->node_count + h];
}

tt_err exchange_open(tt_strategy *s)
{
    exchange *x = calloc(1, sizeof *x);
    size_t most = (size_t)(2 * s->node_count) * (size_t)s->buffers, at = 0;

    if (!x) tt_mem_out(sizeof *x);
    s->ex = x;
    if (s->node_count == 1 || !s->column_group) return TT_OK;
    x->ways = calloc((size_t)s->bucket_count, sizeof *x->ways);
    x->ops = calloc(most + (size_t)s->bucket_count * 2 * (size_t)s->node_count, sizeof *x->ops);
    x->targets = calloc((size_t)s->node_count, sizeof *x->targets);
    x->units = calloc((size_t)s->node_count, sizeof *x->units);
    x->places = calloc((size_t)s->node_count, sizeof *x->places);
    if (!x->ways || !x->ops || !x->targets || !x->units || !x->places)
        tt_mem_out(most * sizeof *x->ops);
    x->way_count = s->bucket_count;
    for (int h = 0; h < s->node_count; h++) {
        x->units[h] = s->nodes[h].units;
        x->places[h] = s->nodes[h].places;
    }
    for (int b = 0; b < s->bucket_count; b++) {
        way *w = &x->ways[b];
        w->stage = DONE;
        if (!(w->ops = calloc(most, sizeof *w->ops))) tt_mem_out(most * sizeof *w->ops);
        x->inbox_bytes += (size_t)part_of(s, &s->buckets[b], s->node).n * (size_t)s->node_count *
                          (size_t)s->buffers * sizeof(float);
    }
    x->inboxes = tt_block_alloc(x->inbox_bytes + 64);
    if (!x->inboxes)
        return tt_fail(TT_ENOMEM, "no memory to receive gradients of %d nodes", s->node_count);
    for (int b = 0; b < s->bucket_count; b++) {
        x->ways[b].inbox = x->inboxes + at;
        at += (size_t)part_of(s, &s->buckets[b], s->node).n * (size_t)s->node_count *
              (size_t)s->buffers;
    }
    return TT_OK;
}

void exchange_close(exchange *x)
{
    if (!x) return;
    for (int b = 0; b < x->way_count; b++) free(x->ways[b].ops);
    free(x->ways);
    free(x->ops);
    free(x->targets);
    free(x->units);
    free(x->places);
    free(x->blob);
    if (x->inboxes) tt_block_free(x->inboxes, x->inbox_bytes + 64);
    free(x);
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
    for (int h = 0; h < s->node_count; h++) {
        ranges cover;
        x->targets[h].count = 0;
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
    }
    range whole = {0, s->plan.exact ? s->units : s->node_count};
    sum_build(all, count, &whole, 1, &s->all_sum);
    for (int b = 0; b < s->bucket_count; b++) x->ways[b].stage = WAITING;
    x->first_open = 0;
}

/* Compressed there is one vector of each node: exact sums are never. */
static tt_err start_squeezed(tt_strategy *s, int index)
{
    exchange *x = s->ex;
    way *w = &x->ways[index];
    const bucket *b = &s->buckets[index];
    tt_span own = part_of(s, b, s->node);
    int tag = tag_of(TAG_SCATTER, (int64_t)index * MOST_TARGETS);
    size_t bytes;
    tt_err err;

    for (int h = 0; h < s->node_count; h++) {
        if (h == s->node || !own.n || !x->targets[h].count) continue;
        void *to = squeeze_inbox(s, index, h, &bytes);
        if ((err = tt_recv_start(s->column_group, column_at(s, h), tag, to, bytes,
                                 &w->ops[w->op_count++])))
            return err;
    }
    for (int i = 0; i < s->node_count && x->targets[s->node].count; i++) {
        int h = (s->node + i) % s->node_count;
        if (!part_of(s, b, h).n) continue;
        const void *from = squeeze_part(s, index, h, &bytes);
        if (h == s->node) continue;
        if ((err = tt_send_start(s->column_group, column_at(s, h), tag, from, bytes,
                                 &w->ops[w->op_count++])))
            return err;
        s->stats.bytes_sent += (int64_t)bytes;
    }
    w->stage = SCATTER;
    return TT_OK;
}

static tt_err start_scatter(tt_strategy *s, int index)
{
    exchange *x = s->ex;
    way *w = &x->ways[index];
    const bucket *b = &s->buckets[index];
    tt_span own = part_of(s, b, s->node);
    float *to = w->inbox;
    tt_err err;

    w->op_count = w->next = 0;
    if (s->squeeze) return start_squeezed(s, index);
    for (int h = 0; h < s->node_count; h++)
        for (int k = 0; k < x->targets[h].count && h != s->node && own.n; k++, to += own.n)
            if ((err = tt_recv_start(s->column_group, column_at(s, h),
                                     tag_of(TAG_SCATTER, (int64_t)index * MOST_TARGETS + k), to,
                                     (size_t)own.n * sizeof *to, &w->ops[w->op_count++])))
                return err;
    for (int i = 1; i < s->node_count; i++) {
        int h = (s->node + i) % s->node_count;
        tt_span part = part_of(s, b, h);
        for (int k = 0; k < x->targets[s->node].count && part.n; k++) {
            const float *from = grad_at(s, s->local, 0, k) + part.at;
            if ((err = tt_send_start(s->column_group, column_at(s, h),
                                     tag_of(TAG_SCATTER, (int64_t)index * MOST_TARGETS + k), from,
                                     (size_t)part.n * sizeof *from, &w->ops[w->op_count++])))
                return err;
            s->stats.bytes_sent += part.n * 4;
        }
    }
    w->stage = SCATTER;
    return TT_OK;
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
    const bucket *b = &s->buckets[index];
    tt_span own = part_of(s, b, s->node);
    size_t bytes;
    tt_err err;

    for (int h = 0; h < s->node_count; h++) {
        if (h == s->node || !part_of(s, b, h).n) continue;
        void *to = squeeze_sum_inbox(s, index, h, &bytes);
        if ((err = tt_recv_start(s->column_group, column_at(s, h), tag_of(TAG_GATHER, index), to,
                                 bytes, &w->ops[w->op_count++])))
            return err;
    }
    if (!own.n) return TT_OK;
    const void *from = squeeze_sum(s, index, &bytes);
    for (int i = 1; i < s->node_count; i++) {
        if ((err = tt_send_start(s->column_group, column_at(s, (s->node + i) % s->node_count),
                                 tag_of(TAG_GATHER, index), from, bytes, &w->ops[w->op_count++])))
            return err;
        s->stats.bytes_sent += (int64_t)bytes;
    }
    return TT_OK;
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
    const bucket *b = &s->buckets[index];
    tt_span own = part_of(s, b, s->node);
    tt_err err;

    for (int h = 0; h < s->node_count; h++) {
        tt_span part = part_of(s, b, h);
        if (h != s->node && part.n &&
            (err = tt_recv_start(s->column_group, column_at(s, h), tag_of(kind, index),
                                 base + part.at, (size_t)part.n * sizeof *base, &ops[(*count)++])))
            return err;
    }
    for (int i = 1; i < s->node_count && own.n; i++) {
        if ((err = tt_send_start(s->column_group, column_at(s, (s->node + i) % s->node_count),
                                 tag_of(kind, index), base + own.at, (size_t)own.n * sizeof *base,
                                 &ops[(*count)++])))
            return err;
        s->stats.bytes_sent += own.n * 4;
    }
    return TT_OK;
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
            if ((err = tt_op_test(&w->ops[w->next]))) return err;
            if (!w->ops[w->next].done) return TT_OK;
            w->next++;
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
    if ((err = tt_ops_wait(x->ops, count)))
        return tt_context(err, "step %lld, new weights", (long long)s->step + 1);
    return TT_OK;
}

/* ---- Small things ---- */

/* Between the leaders of all nodes: `bytes` bytes at each node's own place in `base`. */
static tt_err gather_places(tt_strategy *s, int kind, char *base, size_t each, const range *place)
{
    tt_op *ops = s->ex->ops;
    int count = 0;
    tt_err err;

    for (int h = 0; h < s->node_count; h++) {
        range p = place[h];
        if (h != s->node && p.b > p.a &&
            (err = tt_recv_start(s->column_group, column_at(s, h), tag_of(kind, 0),
                                 base + (size_t)p.a * each, (size_t)(p.b - p.a) * each,
                                 &ops[count++])))
            return err;
    }
    range own = place[s->node];
    for (int i = 1; i < s->node_count && own.b > own.a; i++)
        if ((err = tt_send_start(s->column_group, column_at(s, (s->node + i) % s->node_count),
                                 tag_of(kind, 0), base + (size_t)own.a * each,
                                 (size_t)(own.b - own.a) * each, &ops[count++])))
            return err;
    return tt_ops_wait(ops, count);
}

tt_err exchange_results(tt_strategy *s)
{
    exchange *x = s->ex;
    tt_err err;

    if (s->node_count == 1 || s->local) return TT_OK;
    if ((err = gather_places(s, TAG_RESULTS, (char *)results_of(s), sizeof(tt_result), x->units)) ||
        (err = gather_places(s, TAG_ROWS, (char *)rows_of(s), sizeof(row), x->places)))
        return tt_context(err, "step %lld, results", (long long)s->step + 1);
    return TT_OK;
}

/* A leader's sums of its node become those of all, added in node order. */
tt_err exchange_sums(tt_strategy *s, double *value, int n)
{
    exchange *x = s->ex;
    size_t each = (size_t)n * sizeof *value, all = each * (size_t)s->node_count;
    tt_err err;

    if (x->blob_bytes < all) {
        free(x->blob);
        if (!(x->blob = malloc(all))) tt_mem_out(all);
        x->blob_bytes = all;
    }
    if ((err = tt_group_gather(s->column_group, value, each, x->blob)))
        return tt_context(err, "step %lld, sums of batch norm", (long long)s->step + 1);
    memset(value, 0, each);
    for (int h = 0; h < s->node_count; h++)
        for (int i = 0; i < n; i++) value[i] += ((double *)x->blob)[h * n + i];
    return TT_OK;
}

/* ---- What pieces tell ---- */

tt_err exchange_pieces(tt_strategy *s)
{
    const tt_group *all = tt_world_all(s->world);
    size_t one = sizeof(tt_piece_result), each = one * (size_t)s->piece_count;
    exchange *x = s->ex;
    tt_piece_result *mine, *theirs;
    tt_err err;

    if (x->blob_bytes < each * (size_t)(all->size + 1)) {
        free(x->blob);
        x->blob_bytes = each * (size_t)(all->size + 1);
        if (!(x->blob = malloc(x->blob_bytes))) tt_mem_out(x->blob_bytes);
    }
    mine = (tt_piece_result *)x->blob;
    theirs = mine + s->piece_count;
    for (int i = 0; i < s->piece_count; i++)
        mine[i] = owns(s, i) ? tt_optim_told(s->optim, i) : (tt_piece_result){0};
    if ((err = tt_group_gather(all, mine, each, theirs)))
        return tt_context(err, "step %lld, norms", (long long)s->step + 1);
    for (int i = 0; i < s->piece_count; i++) {
        int owner = s->nodes[s->piece_node[i]].rank[s->piece_column[i]];
        tt_optim_tell(s->optim, i, &theirs[(size_t)owner * (size_t)s->piece_count + (size_t)i]);
    }
    return TT_OK;
}
