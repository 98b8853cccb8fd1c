/* mirror: copies of the optimiser's state on other hosts, so that no host takes any of it along.
 *
 * With `shard` each rank has the optimiser's state of its pieces alone, with `chief` rank 0 has all
 * of it: its *part*. A rank on another host, the *holder*, has a copy of it in its own half, where
 * those pieces would be if they were its own: nothing else is there. After a commit each rank sends
 * its part to its holder while all go on with the next step, and a half says by its mark that the
 * copies in it are there.
 *
 * A rank gives its results of a step only when its copies of the step before are there, and what
 * comes from it has been sent; nobody writes over the state before that one until it has all
 * results (strategy/replicate.c). So at any moment either the last step is whole on what remains
 * without any one host, or the one before it is: nothing that counts as committed is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { TAG_COPY = (1 << 18) + 1 };
static const int64_t RUN_MOST = 16 << 20; /* floats of a message */

bool in_parts(const tt_trainer *t)
{
    return t->plan.aggregate == TT_SHARD || t->plan.aggregate == TT_CHIEF;
}

static bool has_part(const tt_trainer *t, int rank)
{
    return t->plan.aggregate == TT_SHARD || (t->plan.aggregate == TT_CHIEF && !rank);
}

/* Of the ranks on other hosts, from the next host on, as many places in as the owner is on its own:
 * if all hosts have equally many, each holds one. -1: there is no other host. */
static int holder_of(const tt_world *w, int owner)
{
    const tt_peer *own = &w->peer[owner];
    int others = 0, skip;

    for (int r = 0; r < w->size; r++) others += w->peer[r].host != own->host;
    if (!others) return -1;
    skip = own->local % others;
    for (int k = 1; k < w->host_count; k++)
        for (int r = 0; r < w->size; r++)
            if (w->peer[r].host == (own->host + k) % w->host_count && !skip--) return r;
    return -1;
}

int mirror_parts(const tt_trainer *t, int rank, int part[MIRROR_MOST])
{
    int count = 0;

    if (!t->plan.copies || !in_parts(t)) return 0;
    for (int r = 0; r < t->world->size; r++)
        if (has_part(t, r) && holder_of(t->world, r) == rank && count++ < MIRROR_MOST)
            part[count - 1] = r;
    return count;
}

/* The pieces of an owner lie in runs. */
static void add_runs(const tt_trainer *t, mirror *m, int owner, int peer, bool out)
{
    int pieces = tt_optim_piece_count(t->optim);
    mirror_run *last = NULL;

    for (int i = 0; i < pieces; i++) {
        tt_piece p = tt_optim_piece(t->optim, i);
        if (tt_strategy_owner(t->strategy, i) != owner) continue;
        if (last && last->at + last->n == p.at && last->n + p.n <= RUN_MOST) {
            last->n += p.n;
            continue;
        }
        last = &m->run[m->runs++];
        *last = (mirror_run){p.at, p.n, peer, out};
    }
}

tt_err mirror_open(const tt_trainer *t, mirror **out)
{
    const tt_world *w = t->world;
    size_t pieces = (size_t)tt_optim_piece_count(t->optim);
    int none[MIRROR_MOST], most = 0;
    mirror *m;

    *out = NULL;
    if (!in_parts(t) || w->host_count == 1 || !t->plan.copies) return TT_OK;
    for (int r = 0; r < w->size; r++) {
        int count = mirror_parts(t, r, none);
        if (count > most) most = count;
    }
    if (most > MIRROR_MOST) {
        if (!w->rank)
            tt_warn("no copies of the optimiser's state on other hosts, where one worker would "
                    "have those of %d: the most is %d",
                    most, MIRROR_MOST);
        return TT_OK;
    }
    if (!(m = calloc(1, sizeof *m))) tt_mem_out(sizeof *m);
    m->count = mirror_parts(t, w->rank, m->part);
    m->run = calloc((pieces + 1) * (size_t)(m->count + 1), sizeof *m->run);
    if (!m->run) tt_mem_out(pieces * sizeof *m->run);
    if (has_part(t, w->rank)) add_runs(t, m, w->rank, holder_of(w, w->rank), true);
    for (int i = 0; i < m->count; i++) add_runs(t, m, m->part[i], m->part[i], false);
    m->ops = calloc((size_t)(m->runs * t->slot_count) + 1, sizeof *m->ops);
    if (!m->ops) tt_mem_out(sizeof *m->ops);
    *out = m;
    return TT_OK;
}

tt_err mirror_start(const tt_trainer *t, mirror *m, char *half, size_t flat, _Atomic uint64_t *mark,
                    uint64_t value)
{
    const tt_group *all = tt_world_all(t->world);
    tt_err err = TT_OK;

    TT_FAILPOINT("keep.mirror");
    m->mark = mark;
    m->value = value;
    m->under_way = true;
    m->op_count = 0;
    for (int out = 0; out < 2; out++)
        for (int i = 0; i < m->runs; i++)
            for (int s = 0; s < t->slot_count && !err && m->run[i].out == out; s++) {
                const mirror_run *r = &m->run[i];
                char *at = half + (size_t)(s + 1) * flat + (size_t)r->at * sizeof(float);
                size_t bytes = (size_t)r->n * sizeof(float);
                tt_op *op = &m->ops[m->op_count++];
                err = out ? tt_send_start(all, r->peer, TAG_COPY, at, bytes, op)
                          : tt_recv_start(all, r->peer, TAG_COPY, at, bytes, op);
            }
    return err;
}

tt_err mirror_wait(mirror *m)
{
    tt_err err;

    if (!m || !m->under_way) return TT_OK;
    if ((err = tt_ops_wait(m->ops, m->op_count)))
        return tt_context(err, "a copy of the optimiser's state on another host");
    atomic_store(m->mark, m->value);
    m->under_way = false;
    return TT_OK;
}

void mirror_close(mirror *m)
{
    if (!m) return;
    free(m->run);
    free(m->ops);
    free(m);
}
