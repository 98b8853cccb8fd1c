/* begin: the second half of opening: what only one world at a time may have, the run folder and the
 * state. Start, resume, recovery, growing and shrinking are all this: find the freshest state there
 * is, take it up, go on at the next step. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

/* For the log, which was not open when it happened. */
static void tell_where_data_is(const tt_trainer *t)
{
    const char *why, *file = tt_data_common(t->data, &why);

    if (file) tt_info("the data is in common with other workers of this host, in %s", file);
    if (why) tt_info("the data is not in common with other workers of this host: %s", why);
}

/* ---- Weights to start from: rank 0 ---- */

static tt_err load_init(tt_trainer *t, const char *path, bool partial)
{
    tt_node *rename = tt_node_get(t->job.model, "rename");
    json_t *meta = NULL;
    char *whole;
    tt_err err;

    if (!t->init_w && !(t->init_w = calloc((size_t)t->size + 1, sizeof(float))))
        return tt_fail(TT_ENOMEM, "no memory for the weights of %s", path);
    tt_model_init(t->model, (uint64_t)t->conf.seed, t->init_w); /* partial: the rest */
    err = weights_load(path, rename, partial, t->model, t->init_w, t, false, &meta);
    const tt_meaning was = meaning_of(meta);
    json_decref(meta);
    if (err) return err;
    if (was.words && t->data && tt_data_meaning(t->data).words &&
        was.words != tt_data_meaning(t->data).words)
        tt_warn("%s was trained with other words or characters than this job's: ids stand for "
                "something else",
                path);
    if (!(whole = realpath(path, NULL))) return tt_fail(TT_EIO, "%s: %s", path, strerror(errno));
    free(t->init);
    t->init = whole;
    t->init_partial = partial;
    return TT_OK;
}

/* There is no state of this run: as it was started, or is started now. */
static tt_err begin_anew(tt_trainer *t, const tt_train_opts *o)
{
    char *path;
    tt_err err = TT_OK;

    if (t->init_w) return TT_OK;
    report_read_init(t);
    if (o->init) return load_init(t, o->init, o->partial);
    if (!t->init) return TT_OK;
    path = t->init;
    t->init = NULL;
    if ((err = load_init(t, path, t->init_partial)))
        err = tt_context(err, "the weights the run was started from");
    free(path);
    return err;
}

/* ---- Finding ---- */

typedef struct origin { /* what rank 0 knows, for all */
    char id[TT_RUN_ID];
    bool resumed, saved; /* saved: there is a checkpoint, and it has a label */
    tt_label label;
} origin;

static tt_err open_folder(tt_trainer *t, const tt_train_opts *o, origin *out)
{
    bool resume = o->resume || (o->again && o->run && tt_run_begun(o->run));
    tt_err err;

    if (o->init && !resume && (err = load_init(t, o->init, o->partial))) return err;
    if (o->no_files) return TT_OK;
    if ((err = tt_run_dir_open(o->runs ? o->runs : "runs", t->job.name, o->run, resume, &t->dir)))
        return err;
    report_log(t);
    out->resumed = resume;
    return o->keep ? tt_run_dir_id(t->dir, out->id) : TT_OK;
}

/* A checkpoint of a world that was counted has its label; *known is false if it has none. */
static tt_label label_of(const tt_ckpt *c, bool *known)
{
    const json_t *meta = tt_ckpt_meta(c), *g = json_object_get(meta, "generation"),
                 *a = json_object_get(meta, "attempt");

    *known = json_is_integer(g) && json_is_integer(a);
    return (tt_label){(uint32_t)json_integer_value(g), (uint32_t)json_integer_value(a),
                      tt_ckpt_step(c)};
}

/* Rank 0, in the first world of a supervisor: the newest checkpoint may tell of more than the last
 * lines of the ledger, which a machine that lost its power may have lost, too; and whoever trained
 * the run meanwhile without a supervisor has left no other word. */
static tt_err look_at_ckpt(tt_trainer *t, const tt_train_opts *o, origin *out)
{
    tt_err err;

    if (!out->resumed || !o->keep || t->told.why) return TT_OK;
    if ((err = trainer_find_ckpt(t, &t->ckpt))) return err;
    if (t->ckpt) out->label = label_of(t->ckpt, &out->saved);
    return TT_OK;
}

/* Has the vault what is newest? One of a world that nobody counted has no label. */
static bool vault_leads(const tt_recovery *r, const tt_ckpt *c)
{
    bool labelled;

    if (!c) return true;
    tt_label l = label_of(c, &labelled);
    return labelled ? tt_label_compare(l, r->label) <= 0 : l.step <= r->label.step;
}

/* Rank 0: is it the vault, a checkpoint or the start? */
static tt_err choose_origin(tt_trainer *t, const tt_train_opts *o, bool resumed,
                            tt_train_found *out)
{
    const tt_recovery *r = NULL;
    bool labelled = false;
    tt_label l = {0};
    tt_err err;

    *out = (tt_train_found){.disk = true};
    if (t->keep && (r = keep_recovery(t, &out->label))->any) {
        out->disk = false;
        out->made = r->behind ? out->label.generation : r->label.generation;
        out->lost = r->behind;
    }
    if (resumed && !t->ckpt && (out->disk || r->behind) && (err = trainer_find_ckpt(t, &t->ckpt)))
        return err;
    if (!out->disk && vault_leads(r, t->ckpt)) {
        tt_ckpt_close(t->ckpt);
        t->ckpt = NULL;
        return TT_OK;
    }
    out->disk = true;
    if (!t->ckpt && (err = begin_anew(t, o))) return err;
    if (t->ckpt) l = label_of(t->ckpt, &labelled);
    /* What was committed last may have been saved, too: then nothing is lost. That is known of a
     * run that had ended, or moved here. What died has committed more than it came to tell. */
    if (labelled && t->told.ended && tt_told_leads_to(&t->told.told, l)) {
        out->label = l;
        out->made = l.generation;
        out->lost = false;
        return TT_OK;
    }
    out->label = keep_set_line(t, l.step, labelled ? l.attempt : 0);
    out->made = out->label.generation;
    out->lost = t->told.known;
    return TT_OK;
}

tt_err tt_train_find(tt_trainer *t, const tt_train_told *told, tt_train_found *out)
{
    const tt_train_opts *o = &t->opts;
    const tt_group *all = tt_world_all(t->world);
    origin at = {0};
    tt_err err = TT_OK;

    tt_vital_set(o->vital, TT_PHASE_SYNC, 0);
    t->told = *told;
    t->no_files = o->no_files;
    t->saves = !o->no_files && !is_never(&t->save.every);
    if (!t->world->rank && !(err = open_folder(t, o, &at))) err = look_at_ckpt(t, o, &at);
    if ((err = all_agree(t, err)) || (err = agree_folder(t)) ||
        (err = tt_group_bcast(all, 0, &at, sizeof at)))
        return err;
    if (at.saved && told->known) tt_told_raise(&t->told.told, at.label);
    if (o->keep && (err = keep_find(t, at.id, &t->told))) return err;
    TT_FAILPOINT("begin.choose");
    if (!t->world->rank) err = choose_origin(t, o, at.resumed, out);
    if ((err = all_agree(t, err)) || (err = tt_group_bcast(all, 0, out, sizeof *out))) return err;
    TT_FAILPOINT("begin.chosen");
    t->from_disk = out->disk;
    if (out->disk) keep_use_line(t, out->label);
    return TT_OK;
}

/* ---- Beginning ---- */

/* What rank 0 found on disk, or started with, becomes everybody's. */
static tt_err spread_start(tt_trainer *t)
{
    struct {
        int64_t step, early_bad;
        double early_best, best, final_loss, epoch_loss, epoch_weight;
        tt_witness witness;
        tt_epoch last;
        bool early_end;
        int turns;
        tt_turn turn[TT_TURNS];
    } at = {t->step,       t->early_bad,  t->early_best,   t->best,
            t->final_loss, t->epoch_loss, t->epoch_weight, t->witness,
            t->last,       t->early_end,  t->order.turns};
    tt_err err;

    memcpy(at.turn, t->order.turn, sizeof at.turn);
    if ((err = tt_group_bcast(tt_world_all(t->world), 0, &at, sizeof at))) return err;
    t->step = at.step;
    t->early_bad = at.early_bad;
    t->early_best = at.early_best;
    t->best = t->progress.best = at.best;
    t->final_loss = at.final_loss;
    t->epoch_loss = at.epoch_loss;
    t->epoch_weight = at.epoch_weight;
    t->witness = at.witness;
    t->last = at.last;
    t->early_end = at.early_end;
    t->order.turns = at.turns;
    memcpy(t->order.turn, at.turn, sizeof at.turn);
    return tt_strategy_spread(t->strategy);
}

/* A thread that makes batches takes the CPU of the one that trains if there is no other: it then
 * interrupts it at every step, which costs more than making the batch in between. */
static tt_err open_feed(tt_trainer *t)
{
    tt_data_flow flow = tt_data_feeding(t->data);
    int cpus = t->bound ? t->bound : tt_cpu_count() / t->world->sharing;
    tt_cut cut;

    if (flow.threads == TT_THREADS_AUTO) flow.threads = t->threads > 1 || cpus > 1;
    tt_strategy_cut(t->strategy, &cut.first, &cut.end, &cut.of);
    return tt_feed_open(t->data, TT_TRAIN, &t->order, &cut, t->step, flow.threads, flow.prefetch,
                        &t->feed);
}

tt_err trainer_feed(tt_trainer *t)
{
    tt_feed_close(t->feed);
    t->feed = NULL;
    return open_feed(t);
}

/* What the job asks for and here comes to nothing. */
static void tell_idle(const tt_trainer *t)
{
    if (t->world->rank) return;
    tables_tell(t);
    int workers = t->plan.workers ? t->plan.workers : t->world->size;

    if (t->plan.exact && workers > t->plan.grains)
        tt_warn("%d workers for %d grains: %d of them find no work; set parallel.grains", workers,
                t->plan.grains, workers - t->plan.grains);
    if (t->plan.grains && !t->plan.exact)
        tt_warn("parallel.grains is for parallel.exact, and without it does nothing");
    if (t->plan.backup && tt_strategy_nodes(t->strategy) == t->world->size)
        tt_info("parallel.backup: workers back up others of their host, and here there are none");
    if (t->plan.audit > 0 && t->world->size == 1)
        tt_info("parallel.audit: there is one worker, and nobody to look after it");
    if (strcmp(t->plan.compress, "none") && t->world->size == 1)
        tt_info("parallel.compress: there is one worker, and nothing travels");
}

static void plan_trace(tt_trainer *t, const tt_train_opts *o)
{
    if (!o->trace_to) return;
    if (o->trace_to > t->step && o->trace_from <= t->steps) {
        t->trace_from = o->trace_from > t->step ? o->trace_from : t->step + 1;
        t->trace_to = o->trace_to;
    } else if (!t->world->rank) {
        tt_warn("no trace: steps %lld to %lld are not among those to come, %lld to %lld",
                (long long)o->trace_from, (long long)o->trace_to, (long long)t->step + 1,
                (long long)t->steps);
    }
}

/* Rank 0: the state from disk, or what a training begins with. */
static tt_err load_state(tt_trainer *t)
{
    tt_err err = TT_OK;

    if (t->ckpt)
        err = trainer_restore(t, t->ckpt);
    else if (t->init_w && !t->table_count)
        memcpy(t->state.w, t->init_w, (size_t)t->size * sizeof(float));
    else if (t->init_w) /* once more, for the rows: there was no place for them before */
        err = weights_load(t->init, tt_node_get(t->job.model, "rename"), t->init_partial, t->model,
                           t->state.w, t, true, NULL);
    if (t->step > t->steps)
        tt_warn("the run has done %lld steps, more than the %lld of the job: nothing is left to do",
                (long long)t->step, (long long)t->steps);
    if (t->ckpt) t->early_end = t->conf.early.sign && t->early_bad >= t->conf.patience;
    tt_ckpt_close(t->ckpt);
    t->ckpt = NULL;
    free(t->init_w);
    t->init_w = NULL;
    return err;
}

/* Rank 0: the files of the run go on after the last step that counts. */
static tt_err open_files(tt_trainer *t)
{
    int64_t after = t->open_end ? t->step - 1 : t->step;
    tt_err err;

    if (!t->dir) return TT_OK;
    if (!t->from_disk) report_read_init(t);
    if ((err = report_open(t, &t->opts, t->dir->resumed ? after : -1))) return err;
    report_generation(t);
    return TT_OK;
}

tt_err tt_train_begin(tt_trainer *t)
{
    const tt_train_opts *o = &t->opts;
    bool recovered = false;
    tt_err err = TT_OK;

    if (o->stand_by) t->started = t->last_save = t->last_validate = tt_clock_s();
    if (t->keep) {
        if ((err = keep_take(t, &recovered))) return err;
    } else if ((err = tt_strategy_place(t->strategy, NULL))) {
        return err;
    }
    t->state = tt_strategy_state(t->strategy);
    if (!recovered) {
        tt_strategy_init(t->strategy);
        if (!t->world->rank) err = load_state(t);
        if ((err = all_agree(t, err))) return err;
    }
    TT_FAILPOINT("begin.loaded");
    if ((err = all_agree(t, open_files(t))) ||
        (err = all_agree(t, t->saves ? trainer_saver_open(t) : TT_OK)) ||
        (!recovered && (err = spread_start(t))) || (err = all_agree(t, open_feed(t))) ||
        (err = all_agree(t, numbers_open(t))))
        return err;
    TT_FAILPOINT("begin.spread");
    if (!recovered && (err = keep_first(t))) return err;
    t->committed = t->step;
    tell_where_data_is(t);
    t->first_step = t->step;
    plan_trace(t, o);
    t->collected = -1;
    t->progress.before = t->last;
    tell_idle(t);
    /* last: nothing can fail any more */
    if ((err = all_agree(t, t->dir ? tt_run_dir_begin(t->dir) : TT_OK))) return err;
    TT_FAILPOINT("begin.done");
    t->world->timeout_s = 1.5 * t->plan.timeout_s; /* of messages: see tt_strategy_open */
    tt_vital_keep(o->vital, t->step);
    tt_vital_set(o->vital, TT_PHASE_STEP, t->step);
    return TT_OK;
}

/* ---- Going back ---- */

enum { BACK_MOST = 3 };

/* What a training begins with, before anything is known of it. */
static void forget_progress(tt_trainer *t)
{
    t->step = t->early_bad = 0;
    t->early_best = t->best = t->progress.best = t->final_loss = NAN;
    t->epoch_loss = t->epoch_weight = 0;
    t->witness = (tt_witness){0};
    t->last = (tt_epoch){0};
    t->early_end = t->open_end = false;
    t->order.turns = 0;
}

/* Rank 0: the newest good checkpoint, or what it was started with. */
static tt_err find_again(tt_trainer *t)
{
    const tt_train_opts *o = &t->opts;
    tt_err err;

    if (!t->dir) return o->init ? load_init(t, o->init, o->partial) : TT_OK;
    if ((err = trainer_find_ckpt(t, &t->ckpt)) || t->ckpt) return err;
    free(t->init);
    t->init = NULL;
    return begin_anew(t, o);
}

/* Turns that were taken since the checkpoint was made are not in it. */
static tt_err turn_order(tt_trainer *t, const tt_order *before)
{
    int again = 0;

    for (int i = 0; i < before->turns; i++) again += before->turn[i].step == t->step;
    if (again >= BACK_MOST)
        return tt_fail(TT_EDIVERGED,
                       "it went back to step %lld %d times already, in another order each time",
                       (long long)t->step, again);
    memcpy(t->order.turn, before->turn, sizeof before->turn);
    t->order.turns = before->turns;
    return tt_order_turn(&t->order, t->step)
               ? TT_OK
               : tt_fail(TT_EDIVERGED, "it went back %d times of late", TT_TURNS);
}

tt_err trainer_go_back(tt_trainer *t)
{
    tt_order before = t->order;
    tt_err err = TT_OK;

    if ((err = trainer_await_saver(t))) return err;
    if (!t->world->rank) err = find_again(t);
    if ((err = all_agree(t, err))) return err;
    forget_progress(t);
    tt_strategy_skip(t->strategy); /* what is committed is not written to */
    t->state = tt_strategy_state(t->strategy);
    tt_strategy_init(t->strategy);
    if (!t->world->rank) err = load_state(t);
    if ((err = all_agree(t, err)) || (err = spread_start(t)) || (err = turn_order(t, &before)))
        return err;
    tt_vital_keep(t->opts.vital, t->step); /* before anybody is told of it */
    if ((err = all_agree(t, trainer_feed(t)))) return err;
    report_go_back(t);
    keep_new_line(t);
    if ((err = keep_first(t))) return err;
    t->committed = t->step;
    t->collected = -1;
    return TT_OK;
}
