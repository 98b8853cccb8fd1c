/* replicate: the step of synchronous data parallel training.
 *
 * A step, on every seat of a rank:
 *   1  its units: forward, loss, backward. As buckets of its gradient become final it says so
 *      (`ready`) and, between layers, does what has become possible meanwhile: its share of the
 *      node's sums (`reduced`), and on thread 0 the exchange between nodes (`summed`). Then maybe
 *      units of others who are late (backup.c)
 *   2  it says that it has passed; the results of all units are added up in unit order; a loss that
 *      is not finite ends the step here, on all ranks alike
 *   3  pieces that this rank updates, from the current half of the state to the next, as their
 *      bucket is summed
 *   4  a gradient that is not finite leaves everything as it was, else the halves change places
 *   5  chief, shard: new weights are taken from who made them
 *   6  the rank says that it needs nothing of this step any more (`used`)
 *
 * (1) A seat writes to its gradients only when all ranks of the node have used the step before.
 * (2) A result is written at its unit's place by who ran it, and read by all when all have passed.
 * (3) Every element is summed by one seat: where it writes, nobody else reads until it has said so.
 * All flags count steps or buckets since the strategy was opened, so they are never reset. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

void strategy_fail(tt_strategy *s, tt_err err)
{
    int none = TT_OK, mine = (int)err;

    /* Read by the thread that joins all others, so the message needs no lock. */
    if (atomic_compare_exchange_strong(&s->failing, &none, mine))
        snprintf(s->message, sizeof s->message, "%s", tt_message());
}

bool strategy_failed(const tt_strategy *s)
{
    return atomic_load_explicit(&s->failing, memory_order_relaxed) != TT_OK;
}

void strategy_alarm(tt_strategy *s, int rank)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&rank_at(s, 0)->alarm.value, &none, (uint32_t)rank + 1);
}

static void fail_missed(tt_strategy *s, int rank, double waited_s, const char *what)
{
    tt_err err = tt_world_missed(s->world, rank, waited_s);

    strategy_alarm(s, rank);
    strategy_fail(s, tt_context(err, "step %lld, %s", (long long)s->step + 1, what));
}

/* Of one who waits and drives the exchange meanwhile: since when has nothing moved? */
typedef struct watch {
    uint32_t moved;
    double since;
} watch;

/* False: the step has failed. The deadline is for silence, not for the whole. */
static bool drive(tt_strategy *s, watch *w)
{
    uint32_t moved;
    double now = tt_clock_s();
    tt_err err;
    int far;

    if ((err = exchange_poll(s))) {
        strategy_fail(s, err);
        return false;
    }
    moved = tt_flag_get(&rank_at(s, s->local)->moved);
    if (!(w->since > 0) || moved != w->moved) *w = (watch){moved, now};
    if (now - w->since < s->world->timeout_s || (far = exchange_missing(s)) < 0) return true;
    fail_missed(s, far, 0, "sum of gradients");
    return false;
}

/* Waits for a flag of rank `local`; thread 0 drives the exchange meanwhile. Who is nearest to the
 * trouble is to name it, so deadlines differ. A flag that its owner sets by itself is waited for
 * `timeout`; a message one and a half times as long (the world's deadline); a flag that its owner
 * sets when it has heard of others (`indirect`) twice as long since the owner last showed life. */
static bool await(tt_strategy *s, int me, tt_flag *f, uint32_t v, int local, bool indirect,
                  const char *what)
{
    const double limit_s = (indirect ? 2 : 1) * s->plan.timeout_s;
    const tt_flag *life = &rank_at(s, local)->moved;
    tt_idle idle = {.limit_s = limit_s};
    watch w = {0};
    bool drives = me == 0 && !exchange_done(s);
    double begun = trace_on(s) && !tt_flag_has(f, v) ? tt_clock_s() : 0;
    uint32_t missing, moved = tt_flag_get(life);

    while (!tt_flag_has(f, v)) {
        if (strategy_failed(s) || (drives && !drive(s, &w))) return false;
        drives = drives && !exchange_done(s);
        if (indirect && tt_flag_get(life) != moved) {
            moved = tt_flag_get(life);
            idle = (tt_idle){.limit_s = limit_s};
        }
        if ((missing = tt_flag_get(&rank_at(s, 0)->alarm))) {
            fail_missed(s, (int)missing - 1, s->plan.timeout_s, what);
            return false;
        }
        if (tt_idle_once(&idle, s->world, f, v, drives)) continue;
        fail_missed(s, s->nodes[s->node].rank[local], limit_s, what);
        return false;
    }
    if (begun > 0) trace_add(s, me, TRACE_WAIT, 0, begun, tt_clock_s());
    return true;
}

/* ---- 1: units ---- */

/* This seat's share of a column's sum over the node. */
static void reduce(tt_strategy *s, int me, int index)
{
    tt_span col = column_of(s, &s->buckets[index], s->local);
    int threads = node_threads(s, s->local);
    int64_t a = col.n * me / threads, b = col.n * (me + 1) / threads;
    float *out[MOST_TARGETS];
    const float *room[MOST_TERMS];
    double begun = trace_on(s) ? tt_clock_s() : 0;

    for (int k = 0; k < s->targets.count; k++) out[k] = grad_at(s, s->local, 0, k);
    if (b > a) sum_run(&s->node_sum, s->k, backup_terms(s, room), out, col.at + a, b - a);
    if (begun > 0) trace_add(s, me, TRACE_SUM, index, begun, tt_clock_s());
}

/* The flag of a seat of the node whose gradient of a bucket is not final; NULL: all are. */
static tt_flag *not_ready(const tt_strategy *s, int index, int *local)
{
    for (*local = 0; *local < s->nodes[s->node].ranks; ++*local)
        for (int t = 0; t < node_threads(s, *local); t++) {
            tt_flag *f = &seat_at(s, *local, t)->ready;
            if (!tt_flag_has(f, s->base + (uint32_t)index + 1)) return f;
        }
    return NULL;
}

void look_in(tt_strategy *s, int me, int *reduced)
{
    int missing;
    tt_err err;

    if (!s->staged || strategy_failed(s)) return;
    if (s->local < s->columns)
        while (*reduced < s->bucket_count && !not_ready(s, *reduced, &missing)) {
            reduce(s, me, *reduced);
            tt_flag_set(&seat_at(s, s->local, me)->reduced, s->base + (uint32_t)++ * reduced);
        }
    if (!me && (err = exchange_poll(s))) strategy_fail(s, err);
}

/* Batch norm over the threads of this rank: each adds up its share of the numbers. */
static void sum_narrow(tt_strategy *s, int me, double *value, int n)
{
    tt_team *team = tt_crew_team(s->crew);
    int threads = tt_crew_size(s->crew);

    if (threads == 1) return;
    s->offered[me] = value;
    tt_team_barrier(team);
    for (int64_t i = (int64_t)n * me / threads; i < (int64_t)n * (me + 1) / threads; i++) {
        double sum = 0;
        for (int k = 0; k < threads; k++) sum += s->offered[k][i];
        s->total[i] = sum;
    }
    tt_team_barrier(team);
    memcpy(value, s->total, (size_t)n * sizeof *value);
}

/* Over all seats there are; in seat order within a node, then in node order. */
static void sum_wide(tt_strategy *s, int me, double *value, int n)
{
    uint32_t round = s->rounds[me]++;
    bool leads = s->node_count > 1 && s->local == 0 && me == 0;
    size_t bytes = (size_t)n * sizeof *value;
    tt_err err;

    memcpy(sums_at(s, s->local, me, round), value, bytes);
    tt_flag_set(&seat_at(s, s->local, me)->round, round + 1);
    if (s->node_count > 1 && !leads) {
        if (await(s, me, &rank_at(s, 0)->totalled, round + 1, 0, true, "sums of batch norm"))
            memcpy(value, total_at(s, round), bytes);
        return;
    }
    memset(value, 0, bytes);
    for (int l = 0; l < s->nodes[s->node].ranks; l++)
        for (int t = 0; t < node_threads(s, l); t++) {
            if (!await(s, me, &seat_at(s, l, t)->round, round + 1, l, false, "sums of batch norm"))
                return;
            const double *x = sums_at(s, l, t, round);
            for (int i = 0; i < n; i++) value[i] += x[i];
        }
    if (!leads) return;
    if ((err = exchange_sums(s, value, n))) {
        strategy_fail(s, err);
        return;
    }
    memcpy(total_at(s, round), value, bytes);
    tt_flag_set(&rank_at(s, 0)->totalled, round + 1);
}

/* One part of a unit. `last`: what it yields is final. False: another has provided the unit that
 * we compute as well. */
static bool run_part(tt_strategy *s, int me, const tt_batch *in, float *grad, bool add, bool last,
                     const backup *b, int *reduced)
{
    tt_run *run = tt_crew_run(s->crew, me);
    tt_flag *ready = &seat_at(s, s->local, me)->ready;
    int yields = 0, next = 0;
    tt_yield y;

    tt_run_begin(run, TT_PASS_TRAIN, in, grad, add, s->seed);
    for (;;) {
        tt_run_advance(run, &y);
        if (y.kind == TT_PASS_DONE) return true;
        if (y.kind == TT_GRAD_READY && b && backup_provided(s, b)) return false;
        if (y.kind == TT_ROWS) rows_take(s, me, &y.rows);
        if (y.kind == TT_SUM) {
            (y.wide ? sum_wide : sum_narrow)(s, me, y.value, y.n);
        } else if (y.kind == TT_GRAD_READY && (last || b) && s->staged) {
            int was = next;
            yields++;
            while (last && next < s->bucket_count && s->buckets[next].yields <= yields) next++;
            if (next > was) tt_flag_set(ready, s->base + (uint32_t)next);
            if (next > was && trace_on(s))
                trace_add(s, me, TRACE_READY, next - 1, tt_clock_s(), tt_clock_s());
            double begun = tt_clock_s();
            look_in(s, me, reduced);
            s->spent[me].aside += tt_clock_s() - begun;
        }
    }
}

/* `from` has the samples of the step from `skip` on. `to` gets the result, unless it is false. */
static bool run_unit(tt_strategy *s, int me, int u, const tt_batch *from, int skip, float *grad,
                     bool last, int *reduced, tt_result *to)
{
    int first, count;
    int64_t parts = s->plan.accumulate;

    TT_FAILPOINT("step.compute");
    unit_samples(s, u, &first, &count);
    rows_begin_unit(s, me, u);

    /* Where batch norm goes round, all seats make the same calls, with samples or without. */
    if (parts > count && !s->lockstep) parts = count;
    memset(to, 0, sizeof *to);
    for (int64_t i = 0; i < parts; i++) {
        int64_t a = (int64_t)count * i / parts, b = (int64_t)count * (i + 1) / parts;
        tt_batch in = tt_batch_cut(from, (int)(first - skip + a), (int)(b - a), &s->sample);
        double begun = tt_clock_s();
        bool spoil = TT_FAILPOINT("step.nan") && in.n;
        if (spoil && in.x) *(float *)(uintptr_t)in.x = NAN;
        if (!run_part(s, me, &in, grad, a > 0, last && i == parts - 1, s->backup_of[u], reduced))
            return false;
        const tt_result *r = tt_run_result(tt_crew_run(s->crew, me));
        tt_result_add(to, r);
        if (spoil && !in.x) to->loss = NAN; /* there are ids alone */
        for (int k = 0; k < in.n && in.place; k++) to->witness += tt_mix(in.place[2 * k + 1]);
        trace_add(s, me, TRACE_FORWARD, u, begun, r->turned_s);
        if (trace_on(s)) trace_add(s, me, TRACE_BACKWARD, u, r->turned_s, tt_clock_s());
        if (me) continue;
        s->stats.forward_s += r->turned_s - begun;
        s->stats.backward_s += tt_clock_s() - r->turned_s;
    }
    return true;
}

/* How long a unit may take who is not late: as we have seen it in this step, or else by the fastest
 * of a step just past. */
static double patience(const tt_strategy *s, int me)
{
    const spent *own = &s->spent[me];
    double best = INFINITY;

    if (own->units_run) return 1.5 * own->units / own->units_run;
    for (int r = 0; r < s->world->size; r++)
        if (s->times[r].unit > 0 && s->times[r].unit < best) best = s->times[r].unit;
    return 1.5 * best;
}

/* Another has begun with it before us, so it is faster: it gets the time that a unit takes us. */
static void wait_for_help(tt_strategy *s, int me, const backup *b, int *reduced)
{
    double begun = tt_clock_s(), until = begun + patience(s, me) / 1.5;
    tt_idle idle = {.limit_s = s->plan.timeout_s};

    while (!backup_provided(s, b) && tt_clock_s() < until && !strategy_failed(s)) {
        look_in(s, me, reduced);
        if (!tt_idle_once(&idle, s->world, NULL, 0, true)) break;
    }
    s->spent[me].aside += tt_clock_s() - begun;
}

/* A unit of our own; one that others may compute as well we do only as long as they have not. */
static void run_own(tt_strategy *s, int me, int u, float *grad, bool last, int *reduced)
{
    backup *b = s->backup_of[u];
    int first, count, skip, none;
    tt_result r;

    if (b && backup_helped(s, b)) wait_for_help(s, me, b, reduced);
    if (b && backup_provided(s, b)) return;
    if (b) backup_begin(s, b);
    unit_samples(s, s->seats[s->first_seat].units.a, &skip, &none); /* where our batch begins */
    unit_samples(s, u, &first, &count);
    s->spent[me].units_run++;
    s->spent[me].samples += count; /* of one that we give up too: it took that long at least */
    if (run_unit(s, me, u, s->mine, skip, grad, last && !b, reduced, &r) &&
        (!b || backup_take(s, b)))
        results_of(s)[u] = r;
}

static void run_units(tt_strategy *s, int me, int *reduced)
{
    int own = s->first_seat + me;
    range run = s->seats[own].units;
    double begun = tt_clock_s();
    fold f;

    s->spent[me] = (spent){0};
    rows_begin_units(s, me);
    fold_begin(&f, s->units, backup_alone(s, s->local, own));
    for (int u = run.a; u < run.b; u++) {
        int at = fold_place(&f);
        if (s->present[u] || s->lockstep)
            run_own(s, me, u, grad_at(s, s->local, me, at), u + 1 == run.b && !is_audited(s, u),
                    reduced);
        else
            memset(results_of(s) + u, 0, sizeof(tt_result));
        if (is_audited(s, u)) audit_own(s, u, grad_at(s, s->local, me, at));
        if (!s->present[u]) at--; /* the last one that is in use */
        for (int adds = fold_add(&f, u, s->present[u]); adds > 0; adds--, at--) {
            float *to = grad_at(s, s->local, me, at - 1);
            s->k->add(s->size, to, grad_at(s, s->local, me, at), to);
        }
        s->spent[me].units = tt_clock_s() - begun - s->spent[me].aside;
    }
    tt_flag_set(&seat_at(s, s->local, me)->ready, s->base + (uint32_t)s->bucket_count);
}

/* ---- 1b: units of others ---- */

static void run_other(tt_strategy *s, const backup *b, int *reduced)
{
    const tt_batch *in;
    int first, count;
    tt_result r;
    tt_err err;

    unit_samples(s, b->unit, &first, &count);
    if ((err = s->fetch(s->who, first, count, &in))) {
        strategy_fail(s, err);
        return;
    }
    if (run_unit(s, 0, b->unit, in, first, grad_at(s, s->local, 0, b->spare), false, reduced, &r) &&
        backup_take(s, b)) {
        results_of(s)[b->unit] = r;
        s->stats.backups++;
    }
}

/* Who has units is done with them when others should be, too. Who has none waits as long as the
 * fastest of the others takes, as far as that is known: they are not late before. */
static double idle_until(const tt_strategy *s)
{
    double least = INFINITY;

    if (s->spent[0].units_run) return 0;
    for (int r = 0; r < s->world->size; r++) {
        const tt_rank_times *x = &s->times[r];
        double all = (x->units + s->threads[r] - 1) / s->threads[r] * x->unit;
        if (all > 0 && all < least) least = all;
    }
    return s->passed + least; /* s->passed: still the step's begin */
}

/* Thread 0, done with its own units: until those that it may help with are provided. Who does not
 * come at all is named by those who wait for it. */
static void help_others(tt_strategy *s, int *reduced)
{
    double patience_s = patience(s, 0), until = idle_until(s);
    tt_idle idle = {.limit_s = s->plan.timeout_s};
    const backup *b;

    while (!strategy_failed(s) && s->fetch && backup_left(s)) {
        if ((b = backup_next(s, patience_s, until))) {
            run_other(s, b, reduced);
            idle = (tt_idle){.limit_s = s->plan.timeout_s};
            continue;
        }
        look_in(s, 0, reduced);
        if (tt_flag_get(&rank_at(s, 0)->alarm) || !tt_idle_once(&idle, s->world, NULL, 0, true))
            return;
    }
}

/* The rest of the sums of this seat. */
static void finish_sums(tt_strategy *s, int me, int *reduced)
{
    int missing;

    while (s->staged && s->local < s->columns && *reduced < s->bucket_count) {
        uint32_t v = s->base + (uint32_t)*reduced + 1;
        tt_flag *f = not_ready(s, *reduced, &missing);
        if (f && !await(s, me, f, v, missing, false, "its gradient")) return;
        look_in(s, me, reduced);
        if (strategy_failed(s)) return;
    }
}

/* Thread 0 passes when what the rank has under way is through. */
static void await_due(tt_strategy *s)
{
    const tt_step_in *in = s->given;
    watch w = {0};
    tt_err err;

    for (int i = 0; i < in->due_count; i++) {
        tt_op *op = &in->due[i];
        int peer = op->group->rank[op->peer];
        tt_idle idle = {0};
        while (!op->done) {
            if (strategy_failed(s) || (!exchange_done(s) && !drive(s, &w))) return;
            if ((err = tt_op_test(op))) {
                strategy_alarm(s, peer);
                strategy_fail(s, tt_context(err, "step %lld, copies", (long long)s->step + 1));
                return;
            }
            if (op->done || tt_idle_once(&idle, s->world, NULL, 0, true)) continue;
            fail_missed(s, peer, 0, "copies of its state");
            return;
        }
        if (op->sends) s->stats.bytes_sent += (int64_t)op->bytes;
        show_life(s);
    }
    if (strategy_failed(s)) return;
    TT_FAILPOINT("step.copied");
    atomic_store(in->mark, in->value);
    TT_FAILPOINT("step.marked");
    tt_flag_set(&seat_at(s, s->local, 0)->passed, s->turn);
}

/* Messages still under way are for others who wait for them: thread 0 sees them off. */
static void finish_exchange(tt_strategy *s)
{
    tt_idle idle = {0};
    watch w = {0};

    while (!exchange_done(s) && !strategy_failed(s) && drive(s, &w))
        tt_idle_once(&idle, s->world, NULL, 0, true);
}

/* ---- 2: results ---- */

static void hear_results(tt_strategy *s)
{
    const struct node *n = &s->nodes[s->node];
    tt_flag *heard = &rank_at(s, 0)->heard;
    tt_err err;

    memset(&s->stats.sum, 0, sizeof s->stats.sum);
    s->apply = false;
    if (!s->local) {
        for (int l = 0; l < n->ranks; l++)
            for (int t = 0; t < node_threads(s, l); t++)
                if (!await(s, 0, &seat_at(s, l, t)->passed, s->turn, l, s->given->due != NULL,
                           "its part of the batch"))
                    return;
        if ((err = exchange_results(s))) {
            strategy_fail(s, err);
            return;
        }
        tt_flag_set(heard, s->turn);
    }
    if (!await(s, 0, heard, s->turn, 0, true, "results")) return;
    for (int u = 0; u < s->units; u++) tt_result_add(&s->stats.sum, results_of(s) + u);
    for (int h = 0; h < s->node_count; h++)
        for (int l = 0; l < s->nodes[h].ranks; l++) {
            const row *r = rows_of(s) + s->nodes[h].places.a + l;
            s->times[s->nodes[h].rank[l]] = r->times;
            s->hashes[s->nodes[h].rank[l]] = r->hash;
            if (!s->nodes[h].rank[l]) s->stats.order = r->order;
        }
    if (s->plan.aggregate != TT_AVERAGE && (err = hash_compare(s, s->hashes))) {
        strategy_fail(s, err);
        return;
    }
    s->apply = (!s->auditor || audit_compare(s)) && isfinite(s->stats.sum.loss);
    if (s->plan.aggregate == TT_AVERAGE && !s->mine->n) s->apply = false; /* nothing to learn */
    if (s->apply) tt_optim_begin(s->optim, s->step, s->stats.sum.weight, s->stats.sum.samples);
}

/* ---- 3 to 5: the update ---- */

/* Where the sum of a piece is once it is there; NULL: somebody was missing. */
static float *summed_grad(tt_strategy *s, int me, int piece)
{
    int index = s->piece_bucket[piece], c = s->piece_column[piece], missing = 0;
    uint32_t v = s->base + (uint32_t)index + 1;
    tt_piece p = tt_optim_piece(s->optim, piece);
    float *mine = grad_at(s, s->local, 0, 0), *from;

    if (!s->staged) {
        const float *room[MOST_TERMS];
        tt_flag *f;
        while ((f = not_ready(s, index, &missing)))
            if (!await(s, me, f, v, missing, false, "its gradient")) return NULL;
        sum_run(&s->node_sum, s->k, backup_terms(s, room), &mine, p.at, p.n);
        return mine;
    }
    if (s->node_count > 1) {
        if (!await(s, me, &rank_at(s, c)->summed, v, c, true, "sum of gradients")) return NULL;
    } else {
        for (int t = 0; t < node_threads(s, c); t++)
            if (!await(s, me, &seat_at(s, c, t)->reduced, v, c, true, "sum of gradients"))
                return NULL;
    }
    from = grad_at(s, c, 0, 0);
    if (!s->scaled) return from;
    memcpy(s->scaled + p.at, from + p.at, (size_t)p.n * sizeof *from);
    return s->scaled;
}

/* Others of the node may be at it still, and slowly: their flags show that they live, while there
 * is no message of them. */
static bool await_columns(tt_strategy *s)
{
    uint32_t v = s->base + (uint32_t)s->bucket_count;

    for (int c = 0; c < s->columns && s->node_count > 1; c++)
        if (!await(s, 0, &rank_at(s, c)->summed, v, c, true, "sum of gradients")) return false;
    return !strategy_failed(s);
}

static void update(tt_strategy *s, int me)
{
    tt_team *team = tt_crew_team(s->crew);
    int threads = tt_crew_size(s->crew), passes = tt_optim_passes(s->optim);
    /* Each thread its contiguous share of the pieces that are ours. */
    int first = (int)((int64_t)s->own_count * me / threads),
        end = (int)((int64_t)s->own_count * (me + 1) / threads);
    tt_optim_view v = {.w_old = w_at(s, s->local, s->half), .w_new = w_at(s, s->local, !s->half)};
    tt_err err;

    for (int i = 0; i < s->slot_count; i++) {
        v.slot_old[i] = slot_at(s, i, s->half);
        v.slot_new[i] = slot_at(s, i, !s->half);
    }
    rows_prepare(s, me);
    for (int pass = 0; pass < passes; pass++) {
        for (int i = end - 1; i >= first && !strategy_failed(s); i--) {
            v.grad = !pass       ? summed_grad(s, me, s->own_pieces[i])
                     : s->scaled ? s->scaled
                                 : grad_at(s, s->local, 0, 0);
            if (v.grad) tt_optim_run(s->optim, pass, s->own_pieces[i], &v);
        }
        if (!me) finish_exchange(s); /* before all else: others wait for it, in other ranks too */
        tt_team_barrier(team);
        if (!me) {
            if (sharded(s) && s->world->size > 1 && await_columns(s) && (err = exchange_pieces(s)))
                strategy_fail(s, err);
            tt_optim_join(s->optim, pass);
            if (pass == passes - 1) s->apply = tt_optim_finite(s->optim) && !strategy_failed(s);
        }
        tt_team_barrier(team);
    }
}

/* chief, shard: what others have updated. */
static void take_weights(tt_strategy *s, int me)
{
    tt_team *team = tt_crew_team(s->crew);
    int threads = tt_crew_size(s->crew);
    float *mine = w_at(s, s->local, !s->half);
    tt_err err;

    if (!me) {
        if (s->local < s->columns && (err = exchange_weights(s))) strategy_fail(s, err);
        tt_flag_set(&rank_at(s, s->local)->gathered, s->turn);
    }
    for (int i = s->piece_count * me / threads; i < s->piece_count * (me + 1) / threads; i++) {
        int c = s->piece_column[i];
        tt_piece p = tt_optim_piece(s->optim, i);
        if (c == s->local) continue;
        if (!await(s, me, &rank_at(s, c)->gathered, s->turn, c, true, "new weights")) break;
        memcpy(mine + p.at, w_at(s, c, !s->half) + p.at, (size_t)p.n * sizeof *mine);
    }
    tt_team_barrier(team);
}

/* ---- The step ---- */

/* The old state is written over from here on. All ranks have given their results of this step, so
 * all have kept those of the one before. */
void begin_half(tt_strategy *s)
{
    if (s->given->whole) {
        atomic_store(s->given->whole, 0);
        atomic_fetch_add(s->given->begun, 1);
    }
    rows_begin(s); /* what a table was before goes when the half of that step is gone */
}

/* Does anybody look at a hash of the new weights? With average they are hashed when ranks meet. */
static bool hashes_step(const tt_strategy *s)
{
    if (s->plan.aggregate == TT_AVERAGE) return s->world->size == 1;
    return s->world->size > 1 || s->given->whole;
}

static void step_member(void *arg, int me)
{
    tt_strategy *s = arg;
    tt_team *team = tt_crew_team(s->crew);
    int reduced = 0;

    for (int l = 0; l < s->nodes[s->node].ranks; l++) /* keeps (1) */
        await(s, me, &rank_at(s, l)->used, s->turn - 1, l, true, "the end of the step before");
    if (!me) rows_of(s)[s->nodes[s->node].places.a + s->local] = s->row;
    run_units(s, me, &reduced);
    if (!me && s->auditor) audit_others(s, &reduced);
    if (!me && s->backup_count) help_others(s, &reduced);
    if (me || !s->given->due) tt_flag_set(&seat_at(s, s->local, me)->passed, s->turn);
    if (!me) s->passed = tt_clock_s();
    finish_sums(s, me, &reduced);
    if (!me && s->given->due) await_due(s);
    if (!me) hear_results(s);
    if (!me && s->apply) {
        s->heard = tt_clock_s();
        begin_half(s);
        rows_gather(s);
    }
    tt_team_barrier(team);
    if (!s->apply) {
        if (!me) finish_exchange(s); /* nothing may be under way when the step is over */
        return;
    }
    double begun = tt_clock_s();
    update(s, me);
    if (trace_on(s)) trace_add(s, me, TRACE_OPTIM, 0, begun, tt_clock_s());
    if (!s->apply) return;
    rows_change(s, me);
    begun = tt_clock_s();
    if (sharded(s) && s->world->size > 1) take_weights(s, me);
    if (sharded(s) && trace_on(s)) trace_add(s, me, TRACE_WEIGHTS, 0, begun, tt_clock_s());
    if (!me && !strategy_failed(s)) {
        s->half = !s->half;
        s->hashed = w_at(s, s->local, s->half);
        if (TT_FAILPOINT("step.flip_weight")) hash_flip(s, w_at(s, s->local, s->half));
        tt_model_bind(s->model, w_at(s, s->local, s->half));
    }
    tt_team_barrier(team);
    tt_model_refresh(s->model, me, tt_crew_size(s->crew));
    if (hashes_step(s)) hash_share(s, me);
}

/* Who adds what: the terms of the node's seats, and what is to be made of them. */
static void plan_sums(tt_strategy *s)
{
    const struct node *n = &s->nodes[s->node];
    range term[MOST_TERMS];
    int count = 0;

    for (int i = n->seats.a; i < n->seats.b; i++) {
        int local = 0, terms;
        while (n->rank[local] != s->seats[i].rank) local++;
        terms = fold_terms(s->units, s->seats[i].units, backup_alone(s, local, i), s->present,
                           term + count);
        for (int k = 0; k < terms; k++)
            s->term[count + k] = grad_at(s, local, s->seats[i].thread, k);
        /* Else the tree is of the node's seats alone, and that of nodes is above it. */
        for (int k = 0; k < terms && !s->plan.exact; k++)
            term[count + k] = (range){i - n->seats.a, i - n->seats.a + 1};
        count += terms;
    }
    s->targets.count = 0;
    if (!s->plan.exact) {
        s->targets = (ranges){count > 0, {{0, n->seats.b - n->seats.a}}};
    } else {
        ranges cover;
        range whole = s->node_count > 1 ? n->units : (range){0, s->units};
        tree_cover(s->units, whole, &cover);
        for (int i = 0; i < cover.count; i++) {
            bool any = false;
            for (int u = cover.at[i].a; u < cover.at[i].b; u++) any |= s->present[u];
            if (any) s->targets.at[s->targets.count++] = cover.at[i];
        }
    }
    backup_plan(s, term, count);
    sum_build(term, count, s->targets.at, s->targets.count, &s->node_sum);
    s->planned = true;
}

/* Which units have samples in this step? The same as in the step before, as a rule. */
static bool mark_present(tt_strategy *s)
{
    bool same = true;

    for (int u = 0; u < s->units; u++) {
        int first, count;
        unit_samples(s, u, &first, &count);
        same &= s->present[u] == (count > 0);
        s->present[u] = count > 0;
    }
    return same;
}

/* What a unit of a full batch takes, by what those of this step did; 0: there was nothing to do. */
static double unit_time(const tt_strategy *s)
{
    double sum = 0, samples = 0;

    for (int t = 0; t < tt_crew_size(s->crew); t++) {
        sum += s->spent[t].units;
        samples += s->spent[t].samples;
    }
    return samples > 0 ? sum / samples * (double)s->batch / s->units : 0;
}

static void take_times(tt_strategy *s, double data_s, double begun)
{
    const seat *own = &s->seats[s->first_seat];
    double ended = tt_clock_s();

    s->stats.wait_s = s->heard > s->passed ? s->heard - s->passed : 0;
    s->stats.optim_s = ended - (s->heard > s->passed ? s->heard : s->passed);
    s->row.times = (tt_rank_times){.data = data_s,
                                   .forward = s->stats.forward_s,
                                   .backward = s->stats.backward_s,
                                   .wait = s->stats.wait_s,
                                   .optim = s->stats.optim_s,
                                   .step = data_s + ended - begun,
                                   .unit = unit_time(s),
                                   .backups = s->row.times.backups + s->stats.backups,
                                   .units = own[tt_crew_size(s->crew) - 1].units.b - own->units.a};
}

tt_err tt_strategy_step(tt_strategy *s, const tt_step_in *in, tt_step_stats *out)
{
    double begun = tt_clock_s();
    bool average = s->plan.aggregate == TT_AVERAGE;
    tt_err err;

    s->step = in->step;
    s->turn++;
    s->base = s->turn * ((uint32_t)s->bucket_count + 1);
    s->mine = in->mine;
    s->n = in->n;
    s->row.order = in->order;
    s->stats = (tt_step_stats){.doubt.unit = -1};
    s->fetch = in->fetch;
    s->who = in->who;
    s->ran = (range){s->seats[s->first_seat].units.a,
                     s->seats[s->first_seat + tt_crew_size(s->crew) - 1].units.b};
    s->host_n = in->host_n;
    s->given = in;
    if (!mark_present(s) || !s->planned) plan_sums(s);
    if (s->auditor) audit_begin(s);
    exchange_begin(s);
    s->passed = s->heard = begun;
    tt_team_run(tt_crew_team(s->crew), step_member, s);
    if (strategy_failed(s)) return tt_repeat((tt_err)atomic_load(&s->failing), s->message);
    tt_flag_set(&rank_at(s, s->local)->used, s->turn);
    s->stats.applied = s->apply || (average && !in->mine->n);
    s->stats.met = !average || s->world->size == 1;
    if (s->apply && hashes_step(s)) s->row.hash = hash_join(s, rows_hash(s));
    take_times(s, in->data_s, begun);
    deal_again(s);
    if (trace_on(s)) {
        trace_add(s, 0, TRACE_DATA, 0, begun - in->data_s, begun);
        trace_add(s, 0, TRACE_STEP, 0, begun - in->data_s, tt_clock_s());
    }
    if (average && s->world->size > 1) {
        double met = tt_clock_s();
        s->stats.order = 0;
        if (s->stats.applied && (err = average_step(s, in))) return err;
        s->stats.wait_s += tt_clock_s() - met;
    } else {
        s->stats.all = s->stats.sum;
    }
    *out = s->stats;
    return TT_OK;
}
