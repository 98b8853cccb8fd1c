/* numbers: a step in which a loss or a gradient is not finite.
 *
 * All ranks see it in the same step, and none has applied it. Who has run the unit it is in runs it
 * again, to say where it begins; then the job decides: stop; skip, which commits the step with the
 * state it began with; or go back to the last checkpoint, and on in another order.
 *
 * And a step in which two ranks have computed the same grain, and not the same numbers: all compute
 * it once more, to see who is wrong; the step is done again, and what was found is kept. */
#include <errno.h>
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

/* ---- Audits ---- */

enum { DOUBTS_MOST = 3, CATCHES_MOST = 2 };

tt_err numbers_open(tt_trainer *t)
{
    size_t ranks = (size_t)t->world->size;

    if (!(t->plan.audit > 0) || ranks == 1) return TT_OK;
    if (!(t->caught = calloc(ranks, sizeof *t->caught)) ||
        !(t->caught_now = calloc(ranks, sizeof *t->caught_now)))
        tt_mem_out(ranks * sizeof *t->caught);
    return TT_OK;
}

void numbers_close(tt_trainer *t)
{
    free(t->caught);
    free(t->caught_now);
}

bool numbers_were_doubted(const tt_trainer *t)
{
    return t->doubts && t->doubt_step == t->step;
}

bool tt_train_caught(const tt_trainer *t, int rank)
{
    return t->doubts && t->doubt_step + 1 == t->step && t->caught_now[rank];
}

/* What is found is kept in the run folder, whatever becomes of the run. */
static void keep_evidence(const tt_trainer *t, json_t *o)
{
    char path[4200], *line;
    FILE *f;

    json_object_set_new(o, "t", json_real(tt_wall_s()));
    line = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (!t->dir || !line) {
        free(line);
        return;
    }
    snprintf(path, sizeof path, "%s/evidence.jsonl", t->dir->path);
    f = fopen(path, "ae");
    if (!f || fprintf(f, "%s\n", line) < 0 || fflush(f))
        tt_warn("%s cannot be written: %s", path, strerror(errno));
    if (f) fclose(f);
    free(line);
}

static json_t *hex_of(uint64_t hash)
{
    char text[17];

    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

/* What most have now is right, if more than half of those who can have it; then whoever had, or
 * has, something else is wrong. Else who does not repeat itself. */
static void find_wrong(tt_trainer *t, const tt_doubt *d, const uint64_t *again)
{
    int ranks = t->world->size, able = 0, best = 0;
    uint64_t right = 0;

    for (int r = 0; r < ranks; r++) {
        int same = 0;
        for (int k = 0; k < ranks; k++) same += again[k] == again[r];
        able += again[r] != 0;
        if (again[r] && same > best) best = same, right = again[r];
    }
    if (2 * best <= able) right = 0;
    for (int r = 0; r < ranks; r++) t->caught_now[r] = right && again[r] && again[r] != right;
    for (int i = 0; i < 2; i++)
        t->caught_now[d->rank[i]] |= d->hash[i] != (right ? right : again[d->rank[i]]);
}

static void say_doubt(const tt_trainer *t, const tt_doubt *d, tt_str *out)
{
    const tt_world *w = t->world;
    int wrong = 0;

    tt_str_add(out,
               "step %lld: rank %d (%s) and rank %d (%s) have computed grain %d, and not the same "
               "(%016llx, %016llx): ",
               (long long)t->step + 1, d->rank[0], w->peer[d->rank[0]].name, d->rank[1],
               w->peer[d->rank[1]].name, d->unit, (unsigned long long)d->hash[0],
               (unsigned long long)d->hash[1]);
    for (int r = 0; r < w->size; r++)
        if (t->caught_now[r]) tt_str_add(out, "%s%d", wrong++ ? " and " : "rank ", r);
    tt_str_add(out, "%s",
               !wrong      ? "nobody can say who is wrong"
               : wrong > 1 ? " are wrong"
                           : " is wrong");
}

static json_t *evidence_of(const tt_trainer *t, const tt_doubt *d, const uint64_t *again)
{
    json_t *computed = json_array(), *all = json_array();

    for (int i = 0; i < 2; i++)
        json_array_append_new(
            computed, json_pack("{s:i, s:o}", "rank", d->rank[i], "hash", hex_of(d->hash[i])));
    for (int r = 0; r < t->world->size; r++)
        json_array_append_new(all, json_pack("{s:i, s:s, s:o, s:b}", "rank", r, "host",
                                             t->world->peer[r].name, "hash", hex_of(again[r]),
                                             "wrong", (int)t->caught_now[r]));
    return json_pack("{s:s, s:I, s:i, s:o, s:o}", "what", "grain", "step", (json_int_t)t->step + 1,
                     "grain", d->unit, "computed", computed, "again", all);
}

/* Is anybody caught too often? Then the others do not go on with it. */
static tt_err count_caught(tt_trainer *t)
{
    bool enough = false;

    for (int r = 0; r < t->world->size; r++) {
        t->caught[r] += t->caught_now[r];
        if (t->caught[r] < CATCHES_MOST) continue;
        tt_strategy_blame(t->strategy, r);
        enough = true;
    }
    if (enough) return tt_fail(TT_EPEER, "%s, for the second time", t->news);
    if (++t->doubts > DOUBTS_MOST)
        return tt_fail(TT_EPEER, "%s: that was %d times in a row", t->news, t->doubts);
    return TT_OK;
}

tt_err numbers_doubted(tt_trainer *t)
{
    tt_doubt d = t->stats.doubt;
    uint64_t mine = 0, *again = calloc((size_t)t->world->size, sizeof *again);
    tt_str text = {0};
    tt_err err;

    if (!again) tt_mem_out(sizeof *again);
    if (!numbers_were_doubted(t)) t->doubts = 0;
    t->doubt_step = t->step;
    tt_vital_set(t->opts.vital, TT_PHASE_JUDGE, t->step);
    if ((err = all_agree(t, tt_strategy_again(t->strategy, d.unit, &mine))) ||
        (err = tt_group_gather(tt_world_all(t->world), &mine, sizeof mine, again)))
        goto out;
    find_wrong(t, &d, again);
    if (!t->world->rank) keep_evidence(t, evidence_of(t, &d, again));
    say_doubt(t, &d, &text);
    snprintf(t->news, sizeof t->news, "%s", text.data);
    report_numbers(t, "audit");
    if (!(err = count_caught(t))) err = all_agree(t, trainer_feed(t));
    tt_vital_set(t->opts.vital, TT_PHASE_STEP, t->step);
out:
    tt_str_free(&text);
    free(again);
    return err;
}

void numbers_odd(tt_trainer *t)
{
    json_t *ranks;

    if (t->world->rank) return;
    ranks = json_array();
    for (int r = 0; r < t->world->size; r++)
        if (tt_strategy_odd(t->strategy, r))
            json_array_append_new(
                ranks, json_pack("{s:i, s:s}", "rank", r, "host", t->world->peer[r].name));
    if (json_array_size(ranks))
        keep_evidence(t, json_pack("{s:s, s:I, s:O, s:s}", "what", "weights", "step",
                                   (json_int_t)t->step, "wrong", ranks, "text", tt_message()));
    json_decref(ranks);
}

tt_err numbers_agree(tt_trainer *t)
{
    tt_err err = tt_strategy_agree(t->strategy);

    if (err == TT_EPEER) numbers_odd(t);
    return err;
}
