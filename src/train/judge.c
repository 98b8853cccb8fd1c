/* judge: validation: fixed parts of a split, run by the threads of all ranks, and their results
 * added in the order of the parts, so that it does not matter who ran what. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

tt_err judge_open(judge *j, const tt_model *m, tt_crew *crew, tt_world *world, int64_t val_count)
{
    tt_wants wants = tt_model_wants(m);
    tt_err err;

    *j = (judge){.crew = crew,
                 .world = world,
                 .model = m,
                 .size = tt_crew_size(crew),
                 .grain = tt_crew_most(crew),
                 .features = tt_shape_count(tt_model_input(m)),
                 .targets = wants.targets,
                 .labels = wants.classes > 0};
    int64_t ranks = world ? world->size : 1;
    j->part_count = (val_count + j->grain - 1) / j->grain;
    /* for a gather, every rank sends as many as the one that has most */
    int64_t room = (j->part_count / ranks + 1) * ranks;
    j->desks = calloc((size_t)j->size, sizeof *j->desks);
    j->parts = calloc((size_t)j->part_count + 1, sizeof *j->parts);
    j->gathered = calloc((size_t)(ranks > 1 ? room : 1), sizeof *j->gathered);
    if (!j->desks || !j->parts || !j->gathered)
        return tt_fail(TT_ENOMEM, "no memory for the results of %lld samples",
                       (long long)val_count);
    for (int i = 0; i < j->size; i++)
        if ((err = tt_batch_open(j->grain, j->features, j->labels, j->targets, &j->desks[i].batch)))
            return err;
    return TT_OK;
}

void judge_close(judge *j)
{
    for (int i = 0; j->desks && i < j->size; i++)
        tt_batch_close(&j->desks[i].batch, j->grain, j->features, j->targets);
    free(j->desks);
    free(j->parts);
    free(j->gathered);
    *j = (judge){0};
}

tt_metrics metrics_of(const tt_model *m, const tt_result *r)
{
    tt_metrics out = {.loss = r->weight > 0 ? r->loss / r->weight : NAN,
                      .accuracy = NAN,
                      .top5 = NAN,
                      .samples = (int64_t)r->samples};
    tt_wants wants = tt_model_wants(m);

    if (wants.classes && r->rows) out.accuracy = (double)r->correct / (double)r->rows;
    if (wants.classes > 5 && r->rows) out.top5 = (double)r->top5 / (double)r->rows;
    for (int i = 0; i < TT_LOSSES; i++)
        out.part[i] = i < tt_model_loss_count(m) && r->part_weight[i] > 0
                          ? r->part[i] / r->part_weight[i]
                          : NAN;
    return out;
}

typedef struct hearing {
    judge *j;
    const tt_data *d;
    tt_split split;
    tt_order order;
    int64_t first, end; /* parts of this rank */
} hearing;

static void eval_member(void *arg, int me)
{
    hearing *h = arg;
    judge *j = h->j;
    desk *w = &j->desks[me];

    w->err = TT_OK;
    for (int64_t g = h->first + me; g < h->end; g += j->size) {
        int n = tt_order_size(&h->order, g);
        if ((w->err = tt_data_fill(h->d, h->split, &h->order, g, 0, n, &w->batch))) {
            snprintf(w->message, sizeof w->message, "%s", tt_message());
            return;
        }
        j->parts[g] = *tt_crew_pass(j->crew, me, TT_PASS_EVAL, &w->batch);
    }
}

static tt_err gather(judge *j, const hearing *h, int64_t parts)
{
    int64_t ranks = j->world->size, each = parts / ranks + 1;
    tt_result *mine = j->gathered + j->world->rank * each;
    tt_err err;

    memcpy(mine, j->parts + h->first, (size_t)(h->end - h->first) * sizeof *mine);
    if ((err = tt_group_gather(tt_world_all(j->world), mine, (size_t)each * sizeof *mine,
                               j->gathered)))
        return tt_context(err, "results of the validation");
    for (int64_t r = 0; r < ranks; r++) {
        int64_t a = parts * r / ranks, b = parts * (r + 1) / ranks;
        memcpy(j->parts + a, j->gathered + r * each, (size_t)(b - a) * sizeof *mine);
    }
    return TT_OK;
}

tt_err judge_eval(judge *j, const tt_data *d, tt_split split, uint64_t seed, tt_metrics *out)
{
    hearing h = {
        .j = j,
        .d = d,
        .split = split,
        .order = {
            .count = tt_data_count(d, split), .batch = j->grain, .by_pass = true, .seed = seed}};
    int64_t parts = tt_order_steps(&h.order), ranks = j->world ? j->world->size : 1,
            rank = j->world ? j->world->rank : 0;
    tt_result sum = {0};
    tt_err err = TT_OK;

    if (parts > j->part_count)
        return tt_fail(TT_EINVAL, "this split is larger than the one announced");
    h.first = parts * rank / ranks;
    h.end = parts * (rank + 1) / ranks;
    tt_team_run(tt_crew_team(j->crew), eval_member, &h);
    for (int i = 0; i < j->size && !err; i++)
        if (j->desks[i].err) err = tt_repeat(j->desks[i].err, j->desks[i].message);
    if (ranks > 1) {
        if ((err = tt_group_agree(tt_world_all(j->world), err))) return err;
        if ((err = gather(j, &h, parts))) return err;
    }
    if (err) return err;
    for (int64_t g = 0; g < parts; g++) tt_result_add(&sum, &j->parts[g]);
    *out = metrics_of(j->model, &sum);
    return TT_OK;
}
