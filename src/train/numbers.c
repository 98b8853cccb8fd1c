/* numbers: a step in which a loss or a gradient is not finite.
 *
 * All ranks see it in the same step, and none has applied it. Who has run the unit it is in runs it
 * again, to say where it begins; then the job decides: stop; skip, which commits the step with the
 * state it began with; or go back to the last checkpoint, and on in another order. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

typedef struct finding {
    tt_blame blame;
    int64_t row[TT_FAULT_SAMPLES];
} finding;

static finding look(tt_trainer *t)
{
    finding f;

    tt_strategy_probe(t->strategy, &f.blame);
    for (int i = 0; i < f.blame.places; i++) {
        tt_place p = {(int64_t)f.blame.place[i][0], (int64_t)f.blame.place[i][1]};
        f.row[i] = tt_data_row(t->data, TT_TRAIN, tt_order_sample(&t->order, p));
    }
    return f;
}

/* "layer 'conv2', going forward, on rank 1 (a), row 17 of the training data" */
static void say_where(const tt_trainer *t, const finding *f, int rank, tt_str *out)
{
    const tt_blame *b = &f->blame;
    bool layer = strcmp(b->layer, "input") && strcmp(b->layer, "loss");

    tt_str_add(out, ": it begins %s %s%s%s%s, on rank %d (%s), with row%s",
               b->backward ? "in the gradient of" : "in", layer ? "layer '" : "the ", b->layer,
               layer ? "'" : "", b->backward ? "" : " of the way forward", rank,
               t->world->peer[rank].name, b->samples == 1 ? "" : "s");
    for (int i = 0; i < b->places; i++)
        tt_str_add(out, "%s%lld", i ? ", " : " ", (long long)f->row[i]);
    if (b->samples > b->places) tt_str_add(out, " and %d more", b->samples - b->places);
    tt_str_add(out, " of the training data");
}

static tt_err find_where(tt_trainer *t, tt_str *out)
{
    const tt_world *w = t->world;
    bool apart = t->plan.aggregate == TT_AVERAGE;
    finding mine = look(t), *all = &mine;
    int best = -1;
    tt_err err;

    if (apart) {
        if (mine.blame.unit >= 0) say_where(t, &mine, w->rank, out);
        return TT_OK;
    }
    if (!(all = calloc((size_t)w->size, sizeof *all))) tt_mem_out(sizeof *all);
    if (!(err = tt_group_gather(tt_world_all(w), &mine, sizeof mine, all))) {
        for (int r = 0; r < w->size; r++)
            if (all[r].blame.unit >= 0 && (best < 0 || all[r].blame.unit < all[best].blame.unit))
                best = r;
        if (best >= 0)
            say_where(t, &all[best], best, out);
        else
            tt_str_add(out, ": it is so in no grain by itself, but in their sum");
    }
    free(all);
    return err;
}

static tt_err say_what(tt_trainer *t, tt_str *out)
{
    double loss = t->stats.sum.loss;

    if (!isfinite(loss))
        tt_str_add(out, "step %lld: the loss is not a finite number (%s)", (long long)t->step + 1,
                   isnan(loss) ? "nan"
                   : loss > 0  ? "inf"
                               : "-inf");
    else
        tt_str_add(out, "step %lld: the gradient is not finite, or too large (its norm is %.3g)",
                   (long long)t->step + 1, tt_optim_grad_norm(t->optim));
    return find_where(t, out);
}

static tt_err stop(tt_trainer *t, const char *why)
{
    tt_err err = tt_fail(TT_EDIVERGED, "%s%s%s; try a smaller learning rate or train.clip", t->news,
                         why ? "; " : "", why ? why : "");

    report_numbers(t, "diverged");
    return err;
}

static tt_err go_back(tt_trainer *t)
{
    size_t used = strlen(t->news);
    tt_err err = trainer_go_back(t);
    char why[256];

    if (err == TT_EDIVERGED) {
        snprintf(why, sizeof why, "%s", tt_message());
        return stop(t, why);
    }
    if (err) return tt_context(err, "going back");
    snprintf(t->news + used, sizeof t->news - used,
             "; it goes back to step %lld, and on in another order", (long long)t->step);
    report_numbers(t, "rollback");
    return TT_OK;
}

tt_err numbers_failed(tt_trainer *t, bool *back)
{
    tt_str what = {0};
    tt_err err;

    *back = false;
    tt_vital_set(t->opts.vital, TT_PHASE_JUDGE, t->step);
    if (!(err = say_what(t, &what))) snprintf(t->news, sizeof t->news, "%s", what.data);
    tt_str_free(&what);
    if (err) return err;
    if (t->conf.on_nan == ON_NAN_STOP) return stop(t, NULL);
    if (t->conf.on_nan == ON_NAN_ROLLBACK) {
        *back = true;
        return go_back(t);
    }
    tt_strategy_skip(t->strategy);
    t->state = tt_strategy_state(t->strategy);
    t->skipped = true;
    size_t used = strlen(t->news);
    snprintf(t->news + used, sizeof t->news - used, "; it is skipped");
    return TT_OK;
}
