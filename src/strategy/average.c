/* average: ranks train apart, each on its part of every batch, and meet every so often.
 *
 * When they meet, weights and the optimiser's vectors become their mean over the ranks, so that all
 * have the same state and a checkpoint of it fits any number of them. With an outer optimiser
 * (DiLoCo) the mean is not taken as it is: how far it is from where they met before is a gradient,
 * and momentum on it is kept from meeting to meeting. Running statistics are always just averaged.
 *
 * In between they hear of each other about once a second: what rank 0 orders (they then meet), and
 * what all have done since. It also keeps a fast rank from running far ahead of a slow one. */
#include <stdlib.h>
#include <string.h>

#include "strategy/inner.h"

enum { MOST_ALONE = 64 }; /* steps without a word */

static tt_err mean_of_all(tt_strategy *s, float *x)
{
    const tt_world *w = s->world;

    if (w->host_count > 1) /* there and back, shared out among the ranks of a host */
        s->stats.bytes_sent += 8 * s->size * (w->host_count - 1) / w->host_count / w->local_size;
    return tt_summer_run(s->summer, x, s->size, 1.0f / (float)w->size);
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

static tt_err meet(tt_strategy *s)
{
    tt_state st = tt_strategy_state(s);
    tt_err err = mean_of_all(s, st.w);

    for (int i = 0; i < s->slot_count && !err; i++) err = mean_of_all(s, st.slot[i]);
    if (err) return err;
    if (s->outer) outer_step(s, st.w);
    if (s->met) memcpy(s->met, st.w, (size_t)s->size * sizeof *st.w);
    tt_model_refresh(s->model, 0, 1);
    s->met_at = s->turn;
    hash_settle(s);
    return TT_OK;
}

tt_err tt_strategy_meet(tt_strategy *s)
{
    tt_err err;

    if (s->plan.aggregate != TT_AVERAGE || s->world->size == 1 || s->met_at == s->turn)
        return TT_OK;
    err = meet(s);
    return err ? tt_context(err, "averaging after step %lld", (long long)s->step + 1) : TT_OK;
}

/* Sets times, order and the sum over all ranks, and when to hear of each other again. */
static tt_err hear(tt_strategy *s)
{
    const tt_group *g = tt_world_all(s->world);
    struct told {
        row row;
        tt_result since;
    } mine = {s->row, s->since}, *all = calloc((size_t)g->size, sizeof *all);
    tt_err err;

    if (!all) tt_mem_out((size_t)g->size * sizeof *all);
    if (!(err = tt_group_gather(g, &mine, sizeof mine, all))) {
        for (int r = 0; r < g->size; r++) {
            s->times[r] = all[r].row.times;
            s->hashes[r] = all[r].row.hash;
            tt_result_add(&s->stats.all, &all[r].since);
        }
        s->stats.order = all[0].row.order;
        s->since = (tt_result){0};
        double step_s = s->times[0].step;
        s->hear_at = s->step + (step_s * MOST_ALONE > 1 ? 1 + (int64_t)(1 / step_s) : MOST_ALONE);
    }
    free(all);
    return err ? err : hash_compare(s, s->hashes);
}

tt_err average_step(tt_strategy *s, const tt_step_in *in)
{
    bool due = in->meet || (s->plan.every && (in->step + 1) % s->plan.every == 0);
    tt_err err;

    tt_result_add(&s->since, &s->stats.sum);
    if (!due && !in->hear && in->step < s->hear_at) return TT_OK;
    if (!(err = hear(s)) && (due || s->stats.order)) err = meet(s);
    s->stats.met = s->met_at == s->turn;
    return err ? tt_context(err, "step %lld, averaging", (long long)s->step + 1) : TT_OK;
}
