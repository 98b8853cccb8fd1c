/* crew: threads that run grains side by side, each with a run of its own. */
#include <stdlib.h>
#include <string.h>

#include "strategy/strategy.h"

struct tt_crew {
    tt_team *team;
    int size, most;
    tt_run **runs;
};

tt_err tt_crew_open(const tt_model *m, int threads, int most, bool train, tt_crew **out)
{
    tt_crew *c = calloc(1, sizeof *c);
    tt_err err = TT_OK;

    *out = NULL;
    if (!c || !(c->runs = calloc((size_t)threads, sizeof *c->runs))) tt_mem_out(sizeof *c);
    c->size = threads;
    c->most = most;
    if ((err = tt_team_open(threads, &c->team))) goto out;
    for (int i = 0; i < threads && !err; i++) err = tt_run_open(m, most, train, &c->runs[i]);
    if (err) goto out;
    *out = c;
    c = NULL;
out:
    tt_crew_close(c);
    return err;
}

int tt_crew_size(const tt_crew *c)
{
    return c->size;
}
int tt_crew_most(const tt_crew *c)
{
    return c->most;
}
tt_team *tt_crew_team(tt_crew *c)
{
    return c->team;
}
tt_run *tt_crew_run(tt_crew *c, int member)
{
    return c->runs[member];
}

const tt_result *tt_crew_pass(tt_crew *c, int member, tt_pass pass, const tt_batch *in)
{
    tt_run *r = c->runs[member];
    tt_yield y;

    tt_run_begin(r, pass, in, NULL, false, 0);
    do tt_run_advance(r, &y);
    while (y.kind != TT_PASS_DONE);
    return tt_run_result(r);
}

void tt_crew_close(tt_crew *c)
{
    if (!c) return;
    tt_team_close(c->team);
    for (int i = 0; i < c->size; i++) tt_run_close(c->runs[i]);
    free(c->runs);
    free(c);
}

void tt_result_add(tt_result *to, const tt_result *from)
{
    to->samples += from->samples;
    to->weight += from->weight;
    to->loss += from->loss;
    for (int i = 0; i < TT_LOSSES; i++) {
        to->part[i] += from->part[i];
        to->part_weight[i] += from->part_weight[i];
    }
    to->correct += from->correct;
    to->top5 += from->top5;
    to->rows += from->rows;
    to->scored += from->scored;
    to->yes += from->yes;
    to->logloss += from->logloss;
    to->expected += from->expected;
    to->witness += from->witness;
}
