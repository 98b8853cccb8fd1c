/* Trainings: train/ as it is, with the order of calls watched over. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

struct tutti_trainer {
    tt_tree *job;
    tt_trainer *t;
    tutti_progress last; /* what the last step told                     */
    tt_err err;          /* the training failed, and how                */
    char *message;
    bool finished;
    bool files;         /* a run folder is written, here or by rank 0          */
    tutti_world *world; /* NULL: alone                                         */
    double timeout_s;   /* how long the world is waited for while it trains    */
};

/* Where rank 0 writes and the others wait for it. */
enum { WRITE_S = 3600 };

/* The log is one for the whole program: it goes to the run that was opened last. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static const tutti_trainer *log_owner;

static void own_log(const tutti_trainer *t)
{
    pthread_mutex_lock(&log_lock);
    log_owner = t;
    pthread_mutex_unlock(&log_lock);
}

static void leave_log(const tutti_trainer *t)
{
    pthread_mutex_lock(&log_lock);
    if (log_owner == t) {
        tt_log_close();
        log_owner = NULL;
    }
    pthread_mutex_unlock(&log_lock);
}

/* ---- opening ---- */

static tt_data_rows rows_from(const tutti_rows *r)
{
    return (tt_data_rows){
        .x = r->x, .ids = r->ids, .label = r->label, .target = r->target, .n = r->count};
}

static bool holds_run(const char *path)
{
    tt_run_info info = {0};
    bool found = tt_file_exists(path) && !tt_run_look(path, &info);

    json_decref(info.summary);
    return found;
}

static tt_err check_options(const tutti_options *o)
{
    if (o->run && o->runs)
        return tt_fail(TT_EINVAL, "options: run and runs both say where to write: give one");
    if (o->resume && !o->run)
        return tt_fail(TT_EINVAL, "options: to resume a run, say which: set run to its folder");
    if (o->partial && !o->init)
        return tt_fail(TT_EINVAL, "options: partial says how to take init: give both");
    if (o->val && !o->train)
        return tt_fail(TT_EINVAL,
                       "options: val without train: rows come in place of the job's data");
    if (o->threads < 0 || o->threads > 1024)
        return tt_fail(TT_EINVAL,
                       "options: %d threads: it must lie between 1 and 1024, or be 0 for "
                       "what the job says",
                       o->threads);
    return TT_OK;
}

/* Is there a run to go on with? Rank 0 has the folder, and decides. */
static tt_err find_run(const tutti_options *o, bool *resume)
{
    *resume = o->resume && !tutti_world_rank(o->world) && holds_run(o->run);
    return o->world ? world_spread(o->world, resume, sizeof *resume) : TT_OK;
}

static tt_err open_with(tutti_trainer *t, const tutti_job *job, const tutti_options *o)
{
    tt_world *inner = world_inner(o->world);
    tt_data_rows train, val;
    tt_train_opts to = {.job = t->job,
                        .job_path = job->path,
                        .run = o->run,
                        .runs = o->runs,
                        .init = o->init,
                        .partial = o->partial,
                        .no_files = !t->files,
                        .threads = o->threads,
                        .world = inner};
    tt_err err;

    if (o->train) train = rows_from(o->train), to.train_rows = &train;
    if (o->val) val = rows_from(o->val), to.val_rows = &val;
    if ((err = find_run(o, &to.resume))) return err;
    if (to.resume) to.init = NULL; /* the checkpoint has what was made of it */
    if ((err = tt_train_open(&to, &t->t))) return err;
    if (inner) t->timeout_s = inner->timeout_s; /* from the job */
    /* Ranks that are processes have a log each; threads share that of rank 0. */
    if (*tt_train_run(t->t) || (t->files && inner && !inner->threads)) own_log(t);
    return TT_OK;
}

tutti_status tutti_trainer_open(const tutti_job *job, const tutti_options *options,
                                tutti_trainer **out)
{
    static const tutti_options none;
    const tutti_options *o = options ? options : &none;
    tutti_trainer *t;
    tt_err err;

    if (!out) return status_of(tt_fail(TT_EINVAL, "tutti_trainer_open: out is NULL"));
    *out = NULL;
    if (o->world && (err = world_enter(o->world, "tutti_trainer_open"))) return status_of(err);
    t = calloc(1, sizeof *t);
    if (!t) tt_mem_out(sizeof *t);
    t->world = o->world;
    t->files = o->run || o->runs;
    if (!(err = check_options(o))) err = job_copy(job, &t->job);
    if (o->world) err = world_agree(o->world, err);
    if (err || (err = open_with(t, job, o))) {
        tt_tree_close(t->job);
        free(t);
        return status_of(world_done(o->world, err));
    }
    *out = t;
    return TUTTI_OK;
}

void tutti_trainer_close(tutti_trainer *t)
{
    if (!t) return;
    tt_train_close(t->t);
    leave_log(t);
    tt_tree_close(t->job);
    free(t->message);
    free(t);
}

/* ---- stepping ---- */

tutti_metrics metrics_from(const tt_metrics *m)
{
    return (tutti_metrics){.loss = m->loss,
                           .accuracy = m->accuracy,
                           .top5 = m->top5,
                           .auc = m->auc,
                           .perplexity = m->perplexity,
                           .bits_per_byte = m->bits_per_byte,
                           .miou = m->miou,
                           .samples = m->samples,
                           .logloss = m->logloss,
                           .calibration = m->calibration,
                           .entropy = m->entropy};
}

static tutti_progress progress_from(const tt_progress *p)
{
    return (tutti_progress){.step = p->step,
                            .steps = p->steps,
                            .epoch = p->epoch,
                            .epochs = p->epochs,
                            .loss = p->loss,
                            .loss_mean = p->loss_mean,
                            .lr = p->lr,
                            .grad_norm = p->grad_norm,
                            .samples_per_s = p->samples_per_s,
                            .eta_s = p->eta_s,
                            .val = metrics_from(&p->val),
                            .validated = p->validated,
                            .saved = p->saved,
                            .epoch_end = p->epoch_end,
                            .save_trouble = p->save_trouble,
                            .end = p->end,
                            .tokens_per_s = p->tokens_per_s};
}

static tt_err check_trainer(const tutti_trainer *t, const char *what)
{
    return t ? TT_OK : tt_fail(TT_EINVAL, "%s: there is no trainer: NULL was given", what);
}

/* For what all ranks do together. */
static tt_err enter_trainer(tutti_trainer *t, const char *what)
{
    tt_err err = check_trainer(t, what);

    if (err || !t->world || (err = world_enter(t->world, what))) return err;
    world_inner(t->world)->timeout_s = t->timeout_s;
    return TT_OK;
}

/* What rank 0 has met while it wrote, to all. */
static tt_err agree_written(tutti_trainer *t, tt_err err)
{
    if (!t->world || err == TT_EPEER) return world_done(t->world, err);
    world_inner(t->world)->timeout_s = WRITE_S;
    return world_done(t->world, world_agree(t->world, err));
}

tutti_status tutti_trainer_step(tutti_trainer *t, tutti_progress *out)
{
    tt_err err = check_trainer(t, "tutti_trainer_step");
    tt_progress p;

    if (err) return status_of(err);
    if (t->err) return status_of(tt_repeat(t->err, t->message));
    if (t->finished)
        return status_of(tt_fail(TT_EINVAL, "this training is finished: open another"));
    if (!t->last.end) {
        if ((err = enter_trainer(t, "tutti_trainer_step"))) return status_of(err);
        if ((err = tt_train_step(t->t, &p))) {
            t->err = world_done(t->world, err);
            t->message = strdup(tt_message());
            if (!t->message) tt_mem_out(strlen(tt_message()));
            return status_of(err);
        }
        t->last = progress_from(&p);
    }
    if (out) *out = t->last;
    /* Told again, it did not happen again. */
    t->last.validated = t->last.saved = t->last.epoch_end = false;
    return TUTTI_OK;
}

tutti_status tutti_trainer_validate(tutti_trainer *t, tutti_metrics *out)
{
    tt_err err = enter_trainer(t, "tutti_trainer_validate");
    tt_metrics m;

    if (!err && !out) err = tt_fail(TT_EINVAL, "tutti_trainer_validate: out is NULL");
    if (err) return status_of(err);
    if ((err = tt_train_validate(t->t, &m))) return status_of(world_done(t->world, err));
    *out = metrics_from(&m);
    return TUTTI_OK;
}

tutti_status tutti_trainer_save(tutti_trainer *t)
{
    tt_err err = enter_trainer(t, "tutti_trainer_save");

    return status_of(err ? err : agree_written(t, tt_train_save(t->t)));
}

const char *tutti_trainer_run(const tutti_trainer *t)
{
    return t ? tt_train_run(t->t) : "";
}

tutti_status tutti_trainer_model(tutti_trainer *t, tutti_model **out)
{
    tt_err err = check_trainer(t, "tutti_trainer_model");

    if (!out) return status_of(tt_fail(TT_EINVAL, "tutti_trainer_model: out is NULL"));
    *out = NULL;
    if (err) return status_of(err);
    return status_of(model_open(tt_tree_copy(t->job), NULL, t->t, NULL, out));
}

tutti_status tutti_trainer_finish(tutti_trainer *t)
{
    tt_err err = check_trainer(t, "tutti_trainer_finish"), saved = TT_OK;
    const char *status;
    tt_str trouble = {0};

    if (err || t->finished) return status_of(err);
    t->finished = true;
    if (!t->files) return TUTTI_OK;
    /* A rank that failed may be alone with that: it asks nobody any more. */
    if (!t->err && (err = enter_trainer(t, "tutti_trainer_finish"))) return status_of(err);
    if (t->err == TT_EDIVERGED)
        status = "diverged";
    else
        status = t->err ? "failed" : t->last.end ? "done" : "stopped";
    if (!t->err && !t->last.end && (saved = tt_train_save(t->t)))
        tt_str_add(&trouble, "%s", tt_message());
    err = tt_train_finish(t->t, status);
    if (saved) err = tt_repeat(saved, trouble.data);
    tt_str_free(&trouble);
    return status_of(t->err ? err : agree_written(t, err));
}

/* ---- all at once ---- */

/* Steps to the end, finishes either way; the first error counts. */
static tutti_status run_whole(tutti_trainer *t, tutti_progress *last)
{
    tutti_status status, end;
    tt_str trouble = {0};

    do status = tutti_trainer_step(t, last);
    while (!status && !last->end);
    if (status) tt_str_add(&trouble, "%s", tt_message());
    end = tutti_trainer_finish(t);
    if (status) tt_repeat((tt_err)status, trouble.data);
    tt_str_free(&trouble);
    last->save_trouble = NULL; /* it belongs to the trainer, who goes */
    return status ? status : end;
}

tutti_status tutti_train(const tutti_job *job, const tutti_options *options, tutti_progress *last,
                         tutti_model **model)
{
    tutti_progress p = {0};
    tutti_trainer *t;
    tutti_status status;

    if (model) *model = NULL;
    if ((status = tutti_trainer_open(job, options, &t))) return status;
    status = run_whole(t, &p);
    if (!status && model) status = tutti_trainer_model(t, model);
    if (!status && last) *last = p;
    tutti_trainer_close(t);
    return status;
}
