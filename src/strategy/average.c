/* average: ranks train apart, each on its part of every batch, and meet every so often.
 *
 * When they meet, weights and the optimiser's vectors become their mean over the ranks, so that all
 * have the same state and a checkpoint of it fits any number of them. With an outer optimiser
 * (DiLoCo) the mean is not taken as it is: how far it is from where they met before is a gradient,
 * and momentum on it is kept from meeting to meeting. Running statistics are always just averaged.
 *
 * The mean is made by messages alone: rank r adds up the r-th part of the vector, in rank order,
 * and gives it back to all. */
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

enum { PART = 1 << 18 }; /* floats of a round: small enough to stay in cache and in flight */

typedef struct meeting {
    float *inbox; /* of each rank: its numbers for our part */
    tt_op *ops;
} meeting;

static tt_span share_of(int64_t n, int size, int r)
{
    int64_t a = n * r / size, b = n * (r + 1) / size;
    return (tt_span){a, b - a};
}

static tt_err mean_round(const tt_group *g, float *x, int64_t n, meeting *m)
{
    tt_span own = share_of(n, g->size, g->me);
    int count = 0;
    tt_err err;

    for (int r = 0; r < g->size; r++)
        if (r != g->me && own.n &&
            (err = tt_recv_start(g, r, TAG_MEAN, m->inbox + r * own.n, (size_t)own.n * sizeof *x,
                                 &m->ops[count++])))
            return err;
    for (int i = 1; i < g->size; i++) {
        int r = (g->me + i) % g->size;
        tt_span p = share_of(n, g->size, r);
        if (p.n && (err = tt_send_start(g, r, TAG_MEAN, x + p.at, (size_t)p.n * sizeof *x,
                                        &m->ops[count++])))
            return err;
    }
    if ((err = tt_ops_wait(m->ops, count))) return err;
    for (int64_t i = 0; i < own.n; i++) {
        double sum = 0;
        for (int r = 0; r < g->size; r++)
            sum += r == g->me ? x[own.at + i] : m->inbox[r * own.n + i];
        x[own.at + i] = (float)(sum / g->size);
    }
    count = 0;
    for (int r = 0; r < g->size; r++) {
        tt_span p = share_of(n, g->size, r);
        if (r != g->me && p.n &&
            (err = tt_recv_start(g, r, TAG_MEAN_BACK, x + p.at, (size_t)p.n * sizeof *x,
                                 &m->ops[count++])))
            return err;
    }
    for (int i = 1; i < g->size && own.n; i++)
        if ((err = tt_send_start(g, (g->me + i) % g->size, TAG_MEAN_BACK, x + own.at,
                                 (size_t)own.n * sizeof *x, &m->ops[count++])))
            return err;
    return tt_ops_wait(m->ops, count);
}

static tt_err mean_of_all(tt_strategy *s, float *x, int64_t n, meeting *m)
{
    const tt_group *g = tt_world_all(s->world);
    tt_err err = TT_OK;

    for (int64_t at = 0; at < n && !err; at += PART) {
        int64_t len = n - at < PART ? n - at : PART;
        err = mean_round(g, x + at, len, m);
        s->stats.bytes_sent += 2 * 4 * len * (g->size - 1) / g->size;
    }
    return err;
}

/* `w` is the mean, `met` where they met before. */
static void outer_step(tt_strategy *s, float *w)
{
    const tt_plan *p = &s->plan;
    int count;
    const tt_param *params = tt_model_params(s->model, &count);

    for (int k = 0; k < count; k++) {
        if (params[k].role == TT_STAT) continue;
        for (int64_t i = params[k].at; i < params[k].at + params[k].n; i++) {
            float delta = s->met[i] - w[i];
            s->outer[i] = (float)p->outer_momentum * s->outer[i] + delta;
            float by =
                p->outer_nesterov ? delta + (float)p->outer_momentum * s->outer[i] : s->outer[i];
            w[i] = s->met[i] - (float)p->outer_lr * by;
        }
    }
}

tt_err average_meet(tt_strategy *s, int order)
{
    const tt_group *g = tt_world_all(s->world);
    tt_state st = tt_strategy_state(s);
    meeting m = {.inbox = calloc((size_t)PART + (size_t)g->size, sizeof(float)),
                 .ops = calloc((size_t)(2 * g->size), sizeof(tt_op))};
    struct told {
        tt_rank_times times;
        int order;
    } mine = {s->row.times, order}, *all = calloc((size_t)g->size, sizeof *all);
    tt_err err;

    if (!m.inbox || !m.ops || !all) tt_mem_out(PART * sizeof(float));
    if ((err = tt_group_gather(g, &mine, sizeof mine, all))) goto out;
    for (int r = 0; r < g->size; r++) s->times[r] = all[r].times;
    s->stats.order = all[0].order;
    if ((err = mean_of_all(s, st.w, s->size, &m))) goto out;
    for (int i = 0; i < s->slot_count && !err; i++) err = mean_of_all(s, st.slot[i], s->size, &m);
    if (err) goto out;
    if (s->outer) outer_step(s, st.w);
    if (s->met) memcpy(s->met, st.w, (size_t)s->size * sizeof *st.w);
    tt_model_refresh(s->model, 0, 1);
out:
    free(m.inbox);
    free(m.ops);
    free(all);
    return err ? tt_context(err, "step %lld, averaging", (long long)s->step + 1) : TT_OK;
}
