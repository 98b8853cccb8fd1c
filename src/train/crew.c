/* crew: threads that run grains side by side.
 *
 * Each worker has a run of its own, so the only place where they meet inside a pass is a TT_SUM:
 * batch norm over all grains in flight. Every worker then makes the same calls in the same order,
 * so the same barriers match. Sums are taken in worker order: they depend on who takes part, never
 * on timing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

tt_err crew_open(crew *c, const tt_model *m, int threads, int grain, bool train, int64_t val_count)
{
    tt_wants wants = tt_model_wants(m);
    tt_err err;

    *c = (crew){.model = m,
                .grain = grain,
                .train = train,
                .features = tt_shape_count(tt_model_input(m)),
                .targets = wants.targets,
                .labels = wants.classes > 0};
    if ((err = tt_team_open(threads, &c->team))) return err;
    c->size = threads;
    c->workers = calloc((size_t)threads, sizeof *c->workers);
    c->total = calloc((size_t)tt_model_sum_most(m) + 1, sizeof *c->total);
    c->part_count = (val_count + grain - 1) / grain;
    c->parts = calloc((size_t)c->part_count + 1, sizeof *c->parts);
    if (!c->workers || !c->total || !c->parts)
        return tt_fail(TT_ENOMEM, "no memory for %d threads", threads);
    for (int i = 0; i < threads; i++) {
        worker *w = &c->workers[i];
        if ((err = tt_run_open(m, grain, train, &w->run))) return err;
        if ((err = tt_batch_open(grain, c->features, c->labels, c->targets, &w->eval))) return err;
        if (train && !(w->grad = tt_block_alloc((size_t)tt_model_size(m) * sizeof(float))))
            return tt_fail(TT_ENOMEM,
                           "no memory for the gradients of %d threads: use fewer with --threads",
                           threads);
    }
    return TT_OK;
}

void crew_close(crew *c)
{
    tt_team_close(c->team);
    for (int i = 0; c->workers && i < c->size; i++) {
        worker *w = &c->workers[i];
        tt_run_close(w->run);
        tt_batch_close(&w->eval, c->grain, c->features, c->targets);
        if (w->grad) tt_block_free(w->grad, (size_t)tt_model_size(c->model) * sizeof(float));
    }
    free(c->workers);
    free(c->total);
    free(c->parts);
    *c = (crew){0};
}

/* Replaces everybody's numbers by their sum: each worker adds up its share of the places. */
static void sum_round(crew *c, int me, double *value, int n)
{
    c->workers[me].sums = value;
    tt_team_barrier(c->team);
    for (int64_t i = (int64_t)n * me / c->size; i < (int64_t)n * (me + 1) / c->size; i++) {
        double s = 0;
        for (int k = 0; k < c->size; k++) s += c->workers[k].sums[i];
        c->total[i] = s;
    }
    tt_team_barrier(c->team);
    memcpy(value, c->total, (size_t)n * sizeof *value);
}

void crew_run(crew *c, int me, tt_pass pass, const tt_batch *in, bool add, uint64_t seed,
              bool together)
{
    worker *w = &c->workers[me];
    tt_yield y;

    tt_run_begin(w->run, pass, in, w->grad, add, seed);
    do {
        tt_run_advance(w->run, &y);
        if (y.kind == TT_SUM && together) sum_round(c, me, y.value, y.n);
    } while (y.kind != TT_PASS_DONE);
}

void result_add(tt_result *to, const tt_result *from)
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

typedef struct eval_job {
    crew *c;
    const tt_data *d;
    tt_split split;
    tt_order order;
    int64_t parts;
} eval_job;

static void eval_member(void *arg, int me)
{
    eval_job *j = arg;
    crew *c = j->c;
    worker *w = &c->workers[me];

    w->err = TT_OK;
    for (int64_t g = me; g < j->parts; g += c->size) {
        int n = tt_order_size(&j->order, g);
        if ((w->err = tt_data_fill(j->d, j->split, &j->order, g, 0, n, &w->eval))) {
            snprintf(w->message, sizeof w->message, "%s", tt_message());
            return;
        }
        crew_run(c, me, TT_PASS_EVAL, &w->eval, false, 0, false);
        c->parts[g] = *tt_run_result(w->run);
    }
}

tt_err crew_eval(crew *c, const tt_data *d, tt_split split, uint64_t seed, tt_metrics *out)
{
    eval_job j = {
        .c = c,
        .d = d,
        .split = split,
        .order = {
            .count = tt_data_count(d, split), .batch = c->grain, .by_pass = true, .seed = seed}};
    tt_result sum = {0};

    j.parts = tt_order_steps(&j.order);
    if (j.parts > c->part_count)
        return tt_fail(TT_EINVAL, "this split is larger than the one announced");
    tt_team_run(c->team, eval_member, &j);
    for (int i = 0; i < c->size; i++)
        if (c->workers[i].err) return tt_repeat(c->workers[i].err, c->workers[i].message);
    for (int64_t g = 0; g < j.parts; g++) result_add(&sum, &c->parts[g]);
    *out = metrics_of(c->model, &sum);
    return TT_OK;
}
