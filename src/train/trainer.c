/* trainer: opening a run, and what comes with a step. The step itself is the strategy's. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

/* ---- The step ---- */

/* What the clock or a user decides, rank 0 decides before a step, and all do after it. */
enum {
    ORDER_STOP = 1,
    ORDER_VALIDATE = 2,
    ORDER_SAVE = 4,
    ORDER_LEAVE = 8,
    ORDER_AGAIN = 16,
    ORDER_MOVE = 32
};

static bool time_is_up(const cadence *c, double since)
{
    return !c->steps && c->seconds > 0 && tt_clock_s() - since >= c->seconds;
}

static int give_order(const tt_trainer *t)
{
    return (t->asked ? ORDER_STOP : 0) | (t->asked_leave ? ORDER_LEAVE : 0) |
           (t->asked_move ? ORDER_MOVE : 0) |
           (time_is_up(&t->conf.validate, t->last_validate) ? ORDER_VALIDATE : 0) |
           (time_is_up(&t->save.every, t->last_save) ? ORDER_SAVE : 0) |
           (*t->trouble && tt_clock_s() - t->last_save >= t->save.retry_s ? ORDER_AGAIN : 0);
}

static bool due(const cadence *c, int64_t step, bool ordered)
{
    return c->steps ? step % c->steps == 0 : ordered;
}

/* Samples of the coming step on each host; NULL: all hosts see the same. */
static const int *host_sizes(tt_trainer *t)
{
    tt_order o = t->order;

    if (!t->shards) return NULL;
    for (int h = 0; h < t->world->host_count; h++) {
        o.count = t->shards[h];
        t->host_n[h] = tt_order_size(&o, t->step);
    }
    return t->host_n;
}

/* Of the step just made, over all ranks. */
static int64_t step_samples(const tt_trainer *t)
{
    int64_t n = 0;

    if (!t->shards) return tt_order_size(&t->order, t->step - 1);
    for (int h = 0; h < t->world->host_count; h++) n += t->host_n[h];
    return n;
}

/* Is the state needed whole after the step that comes? */
static bool will_look(const tt_trainer *t)
{
    int64_t next = t->step + 1;

    return next == t->steps || due(&t->conf.validate, next, false) ||
           (t->saves && due(&t->save.every, next, false));
}

/* The rates so far, without steps in which caches, pages and clocks are still cold. */
static void fill_rates(tt_trainer *t)
{
    tt_progress *p = &t->progress;
    const tt_result *s = &t->stats.sum;
    double samples = (double)step_samples(t), seconds, tokens = 0;

    if (judges_tokens(t->model) && s->samples > 0)
        tokens = samples * (double)s->rows / s->samples; /* average: as many as this rank has */
    if (t->warm > 0) {
        t->warm--;
    } else {
        t->rate_samples += samples;
        t->rate_tokens += tokens;
        t->rate_s += p->step_s;
    }
    bool steady = t->rate_s > 0;
    seconds = steady ? t->rate_s : p->step_s;
    p->samples_per_s = (steady ? t->rate_samples : samples) / seconds;
    p->tokens_per_s = (steady ? t->rate_tokens : tokens) / seconds;
    p->eta_s =
        steady ? (double)(t->steps - t->step) * (double)t->order.batch / p->samples_per_s : NAN;
}

static void fill_progress(tt_trainer *t)
{
    tt_progress *p = &t->progress;
    const tt_result *s = &t->stats.sum;

    p->step = t->step;
    p->steps = t->steps;
    p->epoch_steps = t->epoch_steps;
    p->epoch = (double)t->step / (double)t->epoch_steps;
    p->epochs = (double)t->steps / (double)t->epoch_steps;
    if (!t->skipped) p->loss = s->weight > 0 ? s->loss / s->weight : 0;
    p->lr = tt_optim_lr(t->optim, t->step - 1);
    if (!t->skipped) p->grad_norm = tt_optim_grad_norm(t->optim);
    p->step_s = t->ended - t->begun;
    p->data_s = t->got_data - t->begun;
    p->forward_s = t->stats.forward_s;
    p->backward_s = t->stats.backward_s;
    p->wait_s = t->stats.wait_s;
    p->optim_s = t->stats.optim_s;
    p->bytes_sent = t->stats.bytes_sent;
    p->scaling = 0;
    for (int r = 0; r < t->world->size; r++) {
        const tt_rank_times *x = &tt_strategy_times(t->strategy)[r];
        p->scaling += x->step > 0 ? 1 - x->wait / x->step : 0;
    }
    if (!t->skipped) {
        t->epoch_loss += t->stats.all.loss;
        t->epoch_weight += t->stats.all.weight;
    }
    t->witness.sum += t->stats.all.witness;
    t->witness.count += (uint64_t)t->stats.all.samples;
    p->loss_mean = t->epoch_weight > 0 ? t->epoch_loss / t->epoch_weight : p->loss;
    p->epoch_end = t->step % t->epoch_steps == 0;
    p->validated = false;
    p->saved = 0;
    fill_rates(t);
    t->final_loss = p->loss_mean;
}

static void judge_early_stop(tt_trainer *t)
{
    const goal *g = &t->conf.early;
    double now = metric_of(t, g);

    if (!g->sign || isnan(now)) return;
    if (isnan(t->early_best) || g->sign * (now - t->early_best) > t->conf.min_delta) {
        t->early_best = now;
        t->early_bad = 0;
    } else if (++t->early_bad >= t->conf.patience) {
        t->early_end = true;
        t->progress.end = "early stop";
    }
}

/* A goal that is no number is never reached: nothing is called the best, nothing ends early. */
static void tell_goals(tt_trainer *t)
{
    const goal *goals[] = {&t->conf.early, &t->save.best};

    for (int i = 0; i < TT_COUNT(goals) && !t->told_goal && !t->world->rank; i++) {
        if (!goals[i]->sign || !is_val(goals[i]) || !isnan(metric_of(t, goals[i]))) continue;
        t->told_goal = true;
        tt_warn("%s is no number: %s", goals[i]->metric,
                strcmp(goals[i]->metric, "val.auc") ? "the validation gives none"
                                                    : "it takes samples of both classes, and "
                                                      "scores that are numbers");
    }
}

static tt_err validate(tt_trainer *t)
{
    tt_vital_set(t->opts.vital, TT_PHASE_JUDGE, t->step);
    TT_FAILPOINT("train.validate");
    tt_err err = tt_train_validate(t, &t->progress.val);

    if (err) return err;
    t->last_validate = tt_clock_s();
    t->progress.validated = true;
    tell_goals(t);
    report_validation(t);
    return TT_OK;
}

tt_epoch epoch_ended(const tt_trainer *t)
{
    tt_epoch e = {
        .number = t->step / t->epoch_steps, .sum = t->witness.sum, .count = t->witness.count};

    if (t->order.by_pass) /* else an epoch is a number of steps */
        e.samples = (uint64_t)(t->order.total ? t->order.total : t->order.count);
    return e;
}

static void tell_epoch(tt_trainer *t)
{
    tt_progress *p = &t->progress;

    p->ended = (tt_epoch){0};
    if (!p->epoch_end) return;
    p->ended = t->last = epoch_ended(t);
    t->epoch_loss = t->epoch_weight = 0;
    t->witness = (tt_witness){0};
}

/* What comes with a step: validation first, because a checkpoint keeps its score. One that is made
 * for the score alone is not judged: how often the user saves must not decide when it is over. */
static tt_err after_step(tt_trainer *t)
{
    tt_progress *p = &t->progress;
    bool last = t->step == t->steps, has_val = tt_data_count(t->data, TT_VAL) > 0;
    double now = tt_clock_s();
    tt_err err;

    if (last) p->end = "done";
    p->stopped = t->stats.order & ORDER_STOP;
    p->left = !p->stopped && t->stats.order & ORDER_LEAVE;
    p->moves = p->left && t->stats.order & ORDER_MOVE;
    /* Whatever others are told of, or takes its time, is of a state that stays. */
    if ((p->epoch_end || last || t->stats.order || due(&t->conf.validate, t->step, false) ||
         (t->saves && due(&t->save.every, t->step, false))) &&
        (err = keep_settle(t)))
        return err;
    if (due(&t->conf.validate, t->step, t->stats.order & ORDER_VALIDATE) ||
        (last && !is_never(&t->conf.validate))) {
        if (has_val && (err = validate(t))) return err;
        t->last_validate = now;
        judge_early_stop(t);
    }
    if (t->saves && (p->end || t->stats.order & ORDER_AGAIN ||
                     due(&t->save.every, t->step, t->stats.order & ORDER_SAVE))) {
        if ((err = numbers_agree(t))) return err; /* no other step will tell in time */
        if (is_val(&t->save.best) && !p->validated && (err = validate(t))) return err;
        tt_vital_set(t->opts.vital, TT_PHASE_SAVE, t->step);
        TT_FAILPOINT("train.save");
        if ((err = trainer_save(t))) return err;
    }
    /* After the last step there is nothing to do meanwhile, and this is the last word. What is
     * wrong with the save the progress tells, and tt_train_finish. */
    if (t->saves && p->end && (err = trainer_await_saver(t))) return err;
    trainer_poll_saver(t);
    report_step(t);
    report_trouble(t);
    TT_FAILPOINT("train.reported");
    tell_epoch(t);
    keep_close_step(t);
    tt_vital_keep(t->opts.vital, keep_safe(t));
    /* After the last step it is at its end only when the caller has told of it. */
    tt_vital_set(t->opts.vital, p->end ? TT_PHASE_SAVE : TT_PHASE_STEP, t->step);
    return TT_OK;
}

/* A world before this one has committed the step, and not done what comes with it. */
static tt_err close_step(tt_trainer *t, tt_progress *out)
{
    tt_progress *p = &t->progress;
    tt_err err;

    t->open_end = false;
    p->step = t->step;
    p->steps = t->steps;
    p->epoch_steps = t->epoch_steps;
    p->epoch = (double)t->step / (double)t->epoch_steps;
    p->epochs = (double)t->steps / (double)t->epoch_steps;
    p->lr = tt_optim_lr(t->optim, t->step - 1);
    p->loss_mean = t->final_loss;
    p->epoch_end = t->step % t->epoch_steps == 0;
    p->validated = false;
    p->saved = 0;
    err = after_step(t);
    *out = *p;
    return err;
}

/* The last checkpoint of a finished run may have failed: what the vault has kept is saved now. */
static tt_err save_missing(tt_trainer *t)
{
    bool missing = t->saves && t->saver && tt_saver_last(t->saver) != t->step;
    tt_err err = tt_group_bcast(tt_world_all(t->world), 0, &missing, sizeof missing);

    if (err || !missing) return err;
    if ((err = trainer_save(t))) return err;
    return trainer_await_saver(t);
}

/* A finished run that is resumed: its validation is repeated, so that it ends as it did before. */
static tt_err nothing_left(tt_trainer *t, tt_progress *out)
{
    tt_progress *p = &t->progress;
    tt_err err = TT_OK;

    p->step = p->steps = t->step;
    p->epoch_steps = t->epoch_steps;
    p->epoch = p->epochs = (double)t->step / (double)t->epoch_steps;
    p->loss = p->loss_mean = t->final_loss;
    p->lr = tt_optim_lr(t->optim, t->step - 1);
    p->end = t->early_end ? "early stop" : "done";
    p->saved = 0;
    p->validated =
        tt_data_count(t->data, TT_VAL) && (!is_never(&t->conf.validate) || is_val(&t->save.best));
    if (p->validated) err = tt_train_validate(t, &p->val);
    if (!err) err = save_missing(t);
    *out = *p;
    return err;
}

/* A trace that cannot be written does not stop a training. */
static void write_trace(tt_trainer *t)
{
    char path[4200] = "trace.json";

    if (t->dir) {
        snprintf(path, sizeof path, "%s/trace", t->dir->path);
        if (tt_dir_make(path)) tt_warn("%s", tt_message()); /* the others wait all the same */
        snprintf(path, sizeof path, "%s/trace/steps.json", t->dir->path);
    }
    if (tt_strategy_trace_write(t->strategy, path)) tt_warn("no trace: %s", tt_message());
    t->trace_to = 0;
}

/* Of the step that is under way, for a grain of another rank. */
static tt_err fetch_samples(void *who, int first, int n, const tt_batch **out)
{
    return tt_feed_more(((tt_trainer *)who)->feed, first, n, out);
}

/* The step has come to be an earlier one. */
static tt_err gone_back(tt_trainer *t, tt_progress *out)
{
    tt_progress *p = &t->progress;

    p->step = t->step;
    p->epoch = (double)t->step / (double)t->epoch_steps;
    p->attempt = keep_label(t).attempt;
    p->validated = p->epoch_end = false;
    p->ended = (tt_epoch){0};
    p->saved = 0;
    p->stopped = t->stats.order & ORDER_STOP;
    p->left = !p->stopped && t->stats.order & ORDER_LEAVE;
    p->moves = p->left && t->stats.order & ORDER_MOVE;
    report_trouble(t);
    tt_vital_set(t->opts.vital, TT_PHASE_STEP, t->step);
    *out = *p;
    return TT_OK;
}

static tt_err make_step(tt_trainer *t, tt_progress *out)
{
    const tt_batch *batch;
    tt_cut cut;
    tt_err err;

    if (t->open_end) return close_step(t, out);
    if (t->step >= t->steps || t->early_end) return nothing_left(t, out);
    TT_FAILPOINT("train.step");
    t->begun = tt_clock_s();
    TT_FAILPOINT("train.data");
    tt_strategy_cut(t->strategy, &cut.first, &cut.end, &cut.of); /* it may have been dealt anew */
    tt_feed_recut(t->feed, &cut);
    if ((err = tt_feed_take(t->feed, &batch))) return err; /* of this rank's data alone */
    t->got_data = tt_clock_s();
    if (t->step + 1 == t->trace_from && (err = tt_strategy_trace(t->strategy, true))) return err;
    tt_step_in in = {.step = t->step,
                     .mine = batch,
                     .n = tt_order_size(&t->order, t->step),
                     .host_n = host_sizes(t),
                     .data_s = t->got_data - t->begun,
                     .order = give_order(t),
                     .fetch = t->plan.backup || t->plan.audit > 0 ? fetch_samples : NULL,
                     .who = t,
                     .meet = will_look(t),
                     .hear = (t->step + 1) % t->epoch_steps == 0};
    keep_marks(t, &in.whole, &in.begun);
    keep_due(t, &in);
    if ((err = tt_strategy_step(t->strategy, &in, &t->stats))) {
        if (err == TT_EPEER) numbers_odd(t);
        return err;
    }
    keep_stepped(t);
    if (t->stats.doubt.unit >= 0) return (err = numbers_doubted(t)) ? err : make_step(t, out);
    TT_FAILPOINT("train.computed");
    t->ended = tt_clock_s();
    t->state = tt_strategy_state(t->strategy);
    t->skipped = false;
    t->progress.numbers = numbers_were_doubted(t) ? t->news : NULL;
    t->progress.attempt = 0;
    if (!isfinite(t->stats.sum.loss) || !t->stats.applied) {
        bool back;
        if ((err = numbers_failed(t, &back))) return err;
        t->progress.numbers = t->news;
        if (back) return gone_back(t, out);
    }
    t->step++;
    fill_progress(t);
    if (t->skipped) report_numbers(t, "skipped");
    if ((err = keep_commit(t))) return err;
    TT_FAILPOINT("train.committed");
    tt_vital_set(t->opts.vital, TT_PHASE_STEP, t->step);
    tt_vital_keep(t->opts.vital, keep_safe(t));
    err = after_step(t);
    if (t->trace_to && t->step >= t->trace_from &&
        (t->step == t->trace_to || t->progress.end || t->progress.stopped))
        write_trace(t);
    *out = t->progress;
    return err;
}

tt_err tt_train_step(tt_trainer *t, tt_progress *out)
{
    tt_err err = make_step(t, out);

    t->progress.before = (tt_epoch){0};
    return err;
}

void tt_train_ask_stop(tt_trainer *t)
{
    t->asked = true;
}

void tt_train_ask_leave(tt_trainer *t, bool move)
{
    t->asked_leave = true;
    t->asked_move = move;
}

bool tt_train_odd(const tt_trainer *t, int rank)
{
    return tt_strategy_odd(t->strategy, rank);
}

tt_err tt_train_compare(tt_trainer *t)
{
    return t->world->size > 1 ? tt_strategy_compare(t->strategy) : TT_OK;
}

tt_err tt_train_validate(tt_trainer *t, tt_metrics *out)
{
    tt_err err;

    if (!tt_data_count(t->data, TT_VAL))
        return tt_fail(TT_EINVAL, "the job has no validation data");
    if ((err = tt_strategy_meet(t->strategy))) return err;
    return judge_eval(&t->judge, t->data, TT_VAL, (uint64_t)t->conf.seed, out);
}

/* ---- Opening ---- */

enum { OPEN_S = 600 }; /* how long the others are waited for, at least */

/* `at` is what says how many epochs. */
static tt_err epochs_to_steps(const tt_node *at, int64_t epochs, int64_t epoch_steps, int64_t *out)
{
    if (!__builtin_mul_overflow(epochs, epoch_steps, out)) return TT_OK;
    return tt_node_fail(at, "%lld epochs of %lld steps are more steps than can be counted",
                        (long long)epochs, (long long)epoch_steps);
}

static tt_err plan_steps(tt_trainer *t)
{
    const train_conf *c = &t->conf;
    tt_node *train = t->job.train;
    tt_err err;

    t->order = (tt_order){.count = tt_data_count(t->data, TT_TRAIN),
                          .batch = c->batch,
                          .by_pass = !c->steps_per_epoch,
                          .shuffle = tt_data_feeding(t->data).shuffle,
                          .augment = true,
                          .seed = (uint64_t)c->seed};
    if (t->shards) {
        for (int h = 0; h < t->world->host_count; h++) {
            if (h < t->world->host) t->order.first += t->shards[h];
            t->order.total += t->shards[h];
        }
    }
    int64_t all = t->order.total ? t->order.total : t->order.count;
    if (c->batch > all) {
        tt_warn("train.batch is %lld, but there are %lld samples: a step takes %s",
                (long long)c->batch, (long long)all,
                t->order.by_pass ? "them all" : "some of them more than once");
        if (t->order.by_pass) t->order.batch = all;
    }
    t->epoch_steps = c->steps_per_epoch ? c->steps_per_epoch : tt_order_steps(&t->order);
    t->steps = c->steps;
    if (c->epochs &&
        (err = epochs_to_steps(tt_node_get(train, "epochs"), c->epochs, t->epoch_steps, &t->steps)))
        return err;
    cadence *v = &t->conf.validate, *s = &t->save.every;
    if (v->epochs && (err = epochs_to_steps(tt_node_get(train, "validate"), v->epochs,
                                            t->epoch_steps, &v->steps)))
        return err;
    if (s->epochs && (err = epochs_to_steps(tt_node_get(t->job.checkpoint, "every"), s->epochs,
                                            t->epoch_steps, &s->steps)))
        return err;
    return TT_OK;
}

bool value_before(const tt_train_opts *o, const char *key, char out[64])
{
    char path[4200];
    tt_tree *job = NULL;
    const tt_node *n;

    *out = 0;
    if (!o->run || (!o->resume && !o->again)) return false;
    snprintf(path, sizeof path, "%s/resolved.yaml", o->run);
    if (!tt_file_exists(path) || tt_tree_load(path, &job)) return false;
    n = tt_tree_get(job, key);
    if (n && n->kind == TT_SCALAR) snprintf(out, 64, "%s", n->text);
    tt_tree_close(job);
    return *out != 0;
}

/* The number of threads decides how the batch is cut and so the order of all sums (unless exact): a
 * run that goes on keeps it, whatever machine it is on. */
static int threads_of(const train_conf *c, const tt_train_opts *o, const tt_world *w)
{
    int64_t n = o->threads ? o->threads : c->threads;
    int64_t most = c->batch / c->accumulate / w->size; /* a seat has at least one sample */

    if (most < 1) most = 1;
    char before[64];
    if (!n && o->resume && value_before(o, "train.threads", before) && !tt_parse_int(before, &n))
        n = 0;
    if (!n) n = tt_cpu_count() / w->sharing;
    if (n < 1) n = 1;
    if (o->threads > most && !w->rank)
        tt_warn("%lld of %lld threads: a batch of %lld has no samples for more", (long long)most,
                (long long)n, (long long)c->batch);
    return (int)(n < most ? n : most);
}

/* Before the strategy, which must know where rows are; the model it is for comes after both, so
 * what it wants is asked of one that is not for running. */
static tt_err open_data(tt_trainer *t, const tt_train_opts *o, const tt_kernels *k)
{
    tt_model *m = NULL;
    tt_data_want want;
    tt_err err;

    if ((err = tt_model_open(t->job.model, &(tt_model_opts){.kernels = k}, &m))) return err;
    want = tt_job_want(m);
    if (o->train_rows)
        err =
            tt_data_open_rows(&want, o->train_rows, o->val_rows, (uint64_t)t->conf.seed, &t->data);
    else if (!t->job.data)
        err = tt_node_fail(tt_tree_root(o->job), "the job has no data");
    else
        err = tt_data_open_common(t->job.data, &want, (uint64_t)t->conf.seed, o->share,
                                  t->plan.timeout_s, &t->data);
    tt_model_close(m);
    if (!err) t->local = tt_data_feeding(t->data).local || o->own_rows;
    if (!err && !tt_data_count(t->data, TT_TRAIN))
        err = tt_fail(TT_EDATA, "there is no training data");
    return err;
}

/* Where ranks of a host have the data in common one decodes, and if that fails, the others do after
 * it: it gives them the time that it took itself. */
static tt_err open_data_together(tt_trainer *t, const tt_train_opts *o, const tt_kernels *k)
{
    double begun = tt_clock_s(), timeout_s = t->world->timeout_s;
    tt_err err = open_data(t, o, k);

    t->world->timeout_s += 2 * (tt_clock_s() - begun);
    err = all_agree(t, err);
    t->world->timeout_s = timeout_s;
    return err;
}

static tt_err read_job(tt_trainer *t, const tt_train_opts *o, const tt_kernels **k)
{
    tt_err err;

    if ((err = tt_job_read(o->job, &t->job)) || (err = read_train(t->job.train, &t->conf)) ||
        (err = read_plan(&t->job, &t->plan)) || (err = check_nan(&t->job, &t->conf, &t->plan)) ||
        (err = read_checkpoint(t->job.checkpoint, &t->save)))
        return err;
    t->plan.accumulate = t->conf.accumulate;
    /* Of a run that goes on the bits depend on what was chosen when it began; in another precision
     * there is no going on with the same. */
    char before[64], precision[64];
    const tt_kernels *same;
    bool went_on = value_before(o, "train.kernels", before);
    bool other = value_before(o, "train.precision", precision) &&
                 strcmp(precision, precision_name((tt_precision)t->conf.precision)) != 0;
    if (went_on && other && !strcmp(t->conf.kernels, before)) t->conf.kernels = "auto";
    if ((err = find_kernels(t->job.train, &t->conf, k))) return err;
    if (t->plan.exact && !strcmp(t->conf.kernels, "auto") && went_on && !other &&
        !tt_kernels_pick(before, (*k)->precision, &same)) {
        *k = same;
        t->conf.kernels = same->name;
    }
    return TT_OK;
}

static tt_err open_parts(tt_trainer *t, const tt_train_opts *o, const tt_kernels *k)
{
    tt_model_opts mo = {.kernels = k,
                        .samples = tt_strategy_room(t->strategy),
                        .sync_norm = !t->plan.exact && tt_strategy_seats(t->strategy) > 1};
    tt_err err;

    if ((err = tables_model(t, &mo))) return err;
    t->params = tt_model_params(t->model, &t->param_count);
    t->size = tt_model_size(t->model);
    if ((err = plan_steps(t)) ||
        (err = check_goals(&t->job, &t->conf, o->no_files ? NULL : &t->save, t->model,
                           tt_data_count(t->data, TT_VAL) > 0, t->data)) ||
        (err = tables_optim(t)))
        return err;
    t->slot_count = tt_optim_slots(t->optim);
    return TT_OK;
}

/* Opening goes in phases. Within one a rank works by itself; at its end all hear whether anybody
 * failed, so that none waits for one that will not come. Data is decoded and checkpoints are read
 * meanwhile, which takes what it takes: the deadline of steps is for steps. */
static tt_err stand_by(tt_trainer *t, const tt_train_opts *o)
{
    const tt_kernels *k = NULL;
    tt_err err;

    err = read_job(t, o, &k);
    t->world->timeout_s = 1.5 * t->plan.timeout_s > OPEN_S ? 1.5 * t->plan.timeout_s : OPEN_S;
    if ((err = all_agree(t, err)) || (err = agree_job(t, o->job)) || (err = agree_kernels(t, &k)) ||
        (err = choose_grains(t, k)))
        return err;
    t->threads = threads_of(&t->conf, o, t->world);
    if ((err = open_data_together(t, o, k)) || (err = agree_shards(t))) return err;
    if (o->workers < t->world->size && t->plan.aggregate != TT_AVERAGE && !t->shards)
        t->plan.workers = o->workers;
    if ((err = tt_strategy_open(t->world, &t->plan, t->threads, t->conf.batch, t->shards,
                                &t->strategy)) ||
        (t->world->size > 1 && (err = tt_world_pin(t->world, t->threads, &t->bound))) ||
        (err = all_agree(t, open_parts(t, o, k))) || (err = agree_data(t)) ||
        (err = all_agree(
             t, tt_strategy_start(t->strategy, t->model, t->optim, (uint64_t)t->conf.seed))))
        return err;
    if ((err = all_agree(t, judge_open(&t->judge, t->model, tt_strategy_crew(t->strategy), t->world,
                                       t->local, tt_data_count(t->data, TT_VAL)))))
        return err;
    return o->stand_by ? all_agree(t, tt_strategy_warm(t->strategy)) : TT_OK;
}

tt_err tt_train_open(const tt_train_opts *o, tt_trainer **out)
{
    tt_trainer *t = calloc(1, sizeof *t);
    const tt_train_told none = {0};
    tt_train_found found;
    tt_err err;

    *out = NULL;
    if (!t) return tt_fail(TT_ENOMEM, "no memory for a trainer");
    t->started = t->last_save = t->last_validate = tt_clock_s();
    t->warm = 3;
    t->early_best = t->best = t->final_loss = NAN;
    t->progress.val = tt_metrics_none();
    t->progress.best = t->progress.eta_s = NAN;
    t->world = o->world;
    t->own_world = !o->world;
    t->opts = *o;
    if ((t->own_world && (err = tt_world_alone(&t->world))) || (err = stand_by(t, o)) ||
        (!o->stand_by && ((err = tt_train_find(t, &none, &found)) || (err = tt_train_begin(t))))) {
        if (t->logging) tt_log_close(); /* nobody else knows of it */
        tt_train_close(t);
        return err;
    }
    *out = t;
    return TT_OK;
}

void tt_train_close(tt_trainer *t)
{
    if (!t) return;
    numbers_close(t);
    tt_feed_close(t->feed);
    tt_ckpt_close(t->ckpt);
    tt_saver_close(t->saver);
    tt_journal_close(t->journal);
    tt_events_close(t->events);
    tt_run_dir_close(t->dir);
    judge_close(&t->judge);
    tt_strategy_close(t->strategy);
    keep_close(t, false);
    tt_optim_close(t->optim);
    tt_data_close(t->data);
    tt_model_close(t->model);
    tt_arena_close(t->arena);
    if (t->own_world) tt_world_leave(t->world, 0);
    free(t->shards);
    free(t->host_n);
    free(t->init);
    free(t->init_w);
    free(t);
}

const char *tt_train_name(const tt_trainer *t)
{
    return t->job.name;
}
const char *tt_train_run(const tt_trainer *t)
{
    return t->dir ? t->dir->path : "";
}
const tt_model *tt_train_model(const tt_trainer *t)
{
    return t->model;
}
const tt_data *tt_train_data(const tt_trainer *t)
{
    return t->data;
}
const float *tt_train_params(const tt_trainer *t)
{
    return t->state.w;
}
int64_t tt_train_parameters(const tt_trainer *t)
{
    int64_t n = 0;
    for (int i = 0; i < t->param_count; i++)
        if (t->params[i].role != TT_STAT) n += t->params[i].n;
    for (int i = 0; i < t->table_count; i++) n += t->tables[i].rows * t->tables[i].dim;
    return n;
}
int tt_train_threads(const tt_trainer *t)
{
    return t->threads;
}
const tt_world *tt_train_world(const tt_trainer *t)
{
    return t->world;
}
const tt_plan *tt_train_plan(const tt_trainer *t)
{
    return &t->plan;
}
int tt_train_nodes(const tt_trainer *t)
{
    return tt_strategy_nodes(t->strategy);
}
const tt_rank_times *tt_train_times(const tt_trainer *t)
{
    return tt_strategy_times(t->strategy);
}
int64_t tt_train_first_step(const tt_trainer *t)
{
    return t->first_step;
}
const char *tt_train_best(const tt_trainer *t)
{
    return t->save.best.sign ? t->save.best_text : "";
}
