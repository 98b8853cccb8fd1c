/* trainer: opening a run, and the order of a step.
 *
 * A step, on every thread of the crew:
 *   1. its grains: forward, loss, backward, gradients summed in its own flat array
 *   2. barrier; one thread adds up the losses and decides: a loss that is not finite is not applied
 *   3. the flat array is cut in pieces; each thread takes its share: adds the threads' gradients in
 *      thread order and runs the optimiser on the piece while it is in cache
 *   4. packed copies of the new weights are rebuilt, shared out by layers
 * What each thread does follows from its number alone, so a run repeats bit for bit with as many threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

/* ---- The step ---- */

static void run_share(tt_trainer *t, int me)
{
    crew *c = &t->crew;
    worker *w = &c->workers[me];
    int n = t->batch->n, grains = t->grains;

    memset(&w->sum, 0, sizeof w->sum);
    if (t->solo && me) return;
    if (t->solo) grains = (n + c->grain - 1) / c->grain;
    for (int g = t->solo ? 0 : me, done = 0; g < grains; g += t->solo ? 1 : c->size, done++) {
        int first = (int)((int64_t)n * g / grains), end = (int)((int64_t)n * (g + 1) / grains);
        tt_batch part = tt_batch_cut(t->batch, first, end - first, c->features, c->targets);
        crew_run(c, me, TT_PASS_TRAIN, &part, done > 0, (uint64_t)t->conf.seed, !t->solo);
        result_add(&w->sum, tt_run_result(w->run));
        w->sum.turned_s = tt_run_result(w->run)->turned_s;
    }
}

static void sum_up(tt_trainer *t)
{
    memset(&t->sum, 0, sizeof t->sum);
    for (int i = 0; i < t->crew.size; i++) result_add(&t->sum, &t->crew.workers[i].sum);
    t->turned = t->crew.workers[0].sum.turned_s;
    t->summed = tt_clock_s();
    t->apply = isfinite(t->sum.loss);
    if (t->apply) tt_optim_begin(t->optim, t->step, t->sum.weight, t->sum.samples);
}

static void update_share(tt_trainer *t, int me)
{
    crew *c = &t->crew;
    const tt_kernels *k = tt_model_kernels(t->model);
    int pieces = tt_optim_piece_count(t->optim), buffers = t->solo ? 1 : c->size;
    int first = (int)((int64_t)pieces * me / c->size), end = (int)((int64_t)pieces * (me + 1) / c->size);
    tt_optim_view v = {.grad = c->workers[0].grad, .w_old = t->w, .w_new = t->w};

    for (int s = 0; s < t->slot_count; s++) v.slot_old[s] = v.slot_new[s] = t->slot[s];
    for (int pass = 0; pass < tt_optim_passes(t->optim); pass++) {
        for (int i = first; i < end; i++) {
            tt_piece p = tt_optim_piece(t->optim, i);
            for (int b = 1; b < buffers && !pass; b++)
                k->add(p.n, v.grad + p.at, c->workers[b].grad + p.at, v.grad + p.at);
            tt_optim_run(t->optim, pass, i, &v);
        }
        tt_team_barrier(c->team);
        if (!me) tt_optim_join(t->optim, pass);
        tt_team_barrier(c->team);
    }
    tt_model_refresh(t->model, me, c->size);
}

static void step_member(void *arg, int me)
{
    tt_trainer *t = arg;

    run_share(t, me);
    tt_team_barrier(t->crew.team);
    if (!me) sum_up(t);
    tt_team_barrier(t->crew.team);
    if (t->apply) update_share(t, me);
}

static bool due(const cadence *c, int64_t step, int64_t epoch_steps, double since)
{
    if (c->steps) return step % c->steps == 0;
    if (c->epochs) return step % (c->epochs * epoch_steps) == 0;
    return c->seconds > 0 && since >= c->seconds;
}

static void fill_progress(tt_trainer *t)
{
    tt_progress *p = &t->progress;
    const tt_result *s = &t->sum;
    double left = (double)(t->steps - t->step);

    p->step = t->step;
    p->steps = t->steps;
    p->epoch_steps = t->epoch_steps;
    p->epoch = (double)t->step / (double)t->epoch_steps;
    p->epochs = (double)t->steps / (double)t->epoch_steps;
    p->loss = s->weight > 0 ? s->loss / s->weight : 0;
    p->lr = tt_optim_lr(t->optim, t->step - 1);
    p->grad_norm = tt_optim_grad_norm(t->optim);
    p->step_s = t->ended - t->begun;
    p->data_s = t->got_data - t->begun;
    p->forward_s = t->turned - t->got_data;
    p->backward_s = t->summed - t->turned;
    p->optim_s = t->ended - t->summed;
    t->epoch_loss += s->loss;
    t->epoch_weight += s->weight;
    p->loss_mean = t->epoch_weight > 0 ? t->epoch_loss / t->epoch_weight : 0;
    p->epoch_end = t->step % t->epoch_steps == 0;
    p->validated = p->saved = false;
    if (t->warm > 0) { /* caches, pages and clocks are still cold */
        t->warm--;
    } else {
        t->rate_samples += s->samples;
        t->rate_s += p->step_s;
    }
    p->samples_per_s = t->rate_s > 0 ? t->rate_samples / t->rate_s : s->samples / p->step_s;
    p->eta_s = t->rate_s > 0 ? left * (double)t->order.batch / p->samples_per_s : NAN;
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
        t->progress.end = "early stop";
    }
}

/* What comes with a step: validation first, because a checkpoint keeps its score. */
static tt_err after_step(tt_trainer *t)
{
    tt_progress *p = &t->progress;
    bool last = t->step == t->steps;
    double now = tt_clock_s();
    tt_err err;

    if (last) p->end = "done";
    if (tt_data_count(t->data, TT_VAL) &&
        (due(&t->conf.validate, t->step, t->epoch_steps, now - t->last_validate) || (last && t->conf.validate_text[0] != 'n'))) {
        if ((err = crew_eval(&t->crew, t->data, TT_VAL, (uint64_t)t->conf.seed, &p->val))) return err;
        t->last_validate = tt_clock_s();
        p->validated = true;
        judge_early_stop(t);
        report_validation(t);
    }
    bool ends = p->end != NULL;
    if (t->saver && (due(&t->save.every, t->step, t->epoch_steps, now - t->last_save) || (ends && strcmp(t->save.every_text, "never")))) {
        if ((err = trainer_save(t))) return err;
        p->saved = true;
    }
    report_step(t);
    if (p->epoch_end) t->epoch_loss = t->epoch_weight = 0;
    return TT_OK;
}

/* A finished run that is resumed: its validation is repeated, so that it ends as it did before. */
static tt_err nothing_left(tt_trainer *t, tt_progress *out)
{
    tt_progress *p = &t->progress;
    tt_err err = TT_OK;

    p->step = p->steps = t->steps;
    p->epoch_steps = t->epoch_steps;
    p->epoch = p->epochs = (double)t->steps / (double)t->epoch_steps;
    p->loss = p->loss_mean = p->samples_per_s = NAN;
    p->lr = tt_optim_lr(t->optim, t->steps - 1);
    p->end = "done";
    if (tt_data_count(t->data, TT_VAL)) err = tt_train_validate(t, &p->val);
    p->validated = !err;
    *out = *p;
    return err;
}

tt_err tt_train_step(tt_trainer *t, tt_progress *out)
{
    tt_err err;

    if (t->step >= t->steps) return nothing_left(t, out);
    t->begun = tt_clock_s();
    if ((err = tt_feed_take(t->feed, &t->batch))) return err;
    t->got_data = tt_clock_s();
    t->solo = t->batch->n < t->grains;
    tt_team_run(t->crew.team, step_member, t);
    t->ended = tt_clock_s();
    if (!t->apply)
        return tt_fail(TT_EDIVERGED, "step %lld: the loss is not a finite number (%g); try a smaller learning rate or train.clip",
                       (long long)t->step + 1, t->sum.loss);
    if (!tt_optim_finite(t->optim))
        return tt_fail(TT_EDIVERGED, "step %lld: the gradient is not finite; try a smaller learning rate or train.clip",
                       (long long)t->step + 1);
    t->step++;
    fill_progress(t);
    err = after_step(t);
    *out = t->progress;
    return err;
}

tt_err tt_train_validate(tt_trainer *t, tt_metrics *out)
{
    if (!tt_data_count(t->data, TT_VAL)) return tt_fail(TT_EINVAL, "the job has no validation data");
    return crew_eval(&t->crew, t->data, TT_VAL, (uint64_t)t->conf.seed, out);
}

/* ---- Opening ---- */

static tt_err plan_steps(tt_trainer *t)
{
    const train_conf *c = &t->conf;

    t->order = (tt_order){.count = tt_data_count(t->data, TT_TRAIN), .batch = c->batch, .by_pass = !c->steps_per_epoch,
                          .shuffle = tt_data_feeding(t->data).shuffle, .augment = true, .seed = (uint64_t)c->seed};
    if (!t->order.count) return tt_fail(TT_EDATA, "there is no training data");
    if (c->batch > t->order.count) {
        tt_warn("train.batch is %lld, but there are %lld samples: a step takes them all", (long long)c->batch, (long long)t->order.count);
        if (t->order.by_pass) t->order.batch = t->order.count;
    }
    t->epoch_steps = c->steps_per_epoch ? c->steps_per_epoch : tt_order_steps(&t->order);
    t->steps = c->steps ? c->steps : c->epochs * t->epoch_steps;
    return TT_OK;
}

static int threads_of(const train_conf *c, int asked)
{
    int64_t n = asked ? asked : c->threads ? c->threads : tt_cpu_count();
    int64_t most = c->batch / c->accumulate; /* a grain has at least one sample */
    return (int)(n < most ? n : most);
}

static tt_err open_data(tt_trainer *t, const tt_train_opts *o)
{
    tt_wants w = tt_model_wants(t->model);
    tt_data_want want = {.input = tt_model_input(t->model), .classes = w.classes, .targets = w.targets,
                         .input_at = tt_model_input_at(t->model)};
    if (o->train_rows) return tt_data_open_rows(&want, o->train_rows, o->val_rows, (uint64_t)t->conf.seed, &t->data);
    if (!t->job.data) return tt_node_fail(tt_tree_root(o->job), "the job has no data");
    return tt_data_open(t->job.data, &want, (uint64_t)t->conf.seed, &t->data);
}

static tt_err open_state(tt_trainer *t)
{
    tt_err err = tt_optim_open(t->conf.optimizer, t->conf.schedule, t->conf.clip, t->conf.groups, t->params,
                               t->param_count, t->steps, t->epoch_steps, &t->optim);
    if (err) return err;
    size_t bytes = tt_mul_size((size_t)t->size, sizeof(float));
    t->slot_count = tt_optim_slots(t->optim);
    bool ok = (t->w = tt_block_alloc(bytes)) != NULL;
    for (int i = 0; i < t->slot_count; i++) ok &= (t->slot[i] = tt_block_alloc(bytes)) != NULL;
    if (!ok) return tt_fail(TT_ENOMEM, "no memory for %lld parameters and the optimiser's state", (long long)t->size);
    tt_model_init(t->model, (uint64_t)t->conf.seed, t->w);
    tt_model_bind(t->model, t->w);
    return TT_OK;
}

static tt_err open_all(tt_trainer *t, const tt_train_opts *o)
{
    const tt_kernels *k;
    bool found = false;
    tt_err err;

    if ((err = tt_job_read(o->job, &t->job)) || (err = read_train(t->job.train, &t->conf)) ||
        (err = read_checkpoint(t->job.checkpoint, &t->save)) || (err = tt_kernels_find(t->conf.kernels, &k)))
        return err;
    int threads = threads_of(&t->conf, o->threads);
    t->grains = threads * (int)t->conf.accumulate;
    int grain = (int)((t->conf.batch + t->grains - 1) / t->grains);
    tt_model_opts mo = {.kernels = k, .samples = grain, .sync_norm = threads > 1};
    if ((err = tt_model_open(t->job.model, &mo, &t->model))) return err;
    t->params = tt_model_params(t->model, &t->param_count);
    t->size = tt_model_size(t->model);
    if ((err = open_data(t, o)) || (err = plan_steps(t)) || (err = open_state(t))) return err;
    if ((err = crew_open(&t->crew, t->model, threads, grain, true, tt_data_count(t->data, TT_VAL)))) return err;
    if (o->init) {
        tt_node *rename = tt_node_get(t->job.model, "rename");
        if ((err = tt_weights_load(o->init, rename, o->partial, t->params, t->param_count, t->w))) return err;
    }
    if (!o->no_files) {
        if ((err = tt_run_dir_open(o->runs ? o->runs : "runs", t->job.name, o->run, o->resume, &t->dir))) return err;
        if (o->resume) {
            char folder[4200];
            snprintf(folder, sizeof folder, "%s/checkpoints", t->dir->path);
            if ((err = trainer_restore(t, folder, &found))) return err;
        }
        if ((err = report_open(t, o, found ? t->step : -1))) return err;
        if (t->save.every.steps || t->save.every.epochs || t->save.every.seconds > 0)
            if ((err = trainer_saver_open(t))) return err;
    }
    t->first_step = t->step;
    tt_model_refresh(t->model, 0, 1);
    tt_data_flow flow = tt_data_feeding(t->data);
    return tt_feed_open(t->data, TT_TRAIN, &t->order, t->step, flow.threads, flow.prefetch, &t->feed);
}

tt_err tt_train_open(const tt_train_opts *o, tt_trainer **out)
{
    tt_trainer *t = calloc(1, sizeof *t);
    tt_err err;

    *out = NULL;
    if (!t) return tt_fail(TT_ENOMEM, "no memory for a trainer");
    t->started = t->last_save = t->last_validate = tt_clock_s();
    t->warm = 3;
    t->early_best = t->best = t->final_loss = NAN;
    t->progress.val = (tt_metrics){.loss = NAN, .accuracy = NAN, .top5 = NAN};
    for (int i = 0; i < TT_LOSSES; i++) t->progress.val.part[i] = NAN;
    t->progress.best = t->progress.eta_s = NAN;
    if ((err = open_all(t, o))) {
        tt_train_close(t);
        return err;
    }
    *out = t;
    return TT_OK;
}

void tt_train_close(tt_trainer *t)
{
    if (!t) return;
    tt_feed_close(t->feed);
    tt_saver_close(t->saver);
    tt_journal_close(t->journal);
    tt_events_close(t->events);
    tt_run_dir_close(t->dir);
    crew_close(&t->crew);
    tt_optim_close(t->optim);
    size_t bytes = (size_t)t->size * sizeof(float);
    if (t->w) tt_block_free(t->w, bytes);
    for (int i = 0; i < TT_OPTIM_SLOTS; i++)
        if (t->slot[i]) tt_block_free(t->slot[i], bytes);
    tt_data_close(t->data);
    tt_model_close(t->model);
    tt_arena_close(t->arena);
    free(t);
}

const char *tt_train_name(const tt_trainer *t) { return t->job.name; }
const char *tt_train_run(const tt_trainer *t) { return t->dir ? t->dir->path : ""; }
const tt_model *tt_train_model(const tt_trainer *t) { return t->model; }
const tt_data *tt_train_data(const tt_trainer *t) { return t->data; }
const float *tt_train_params(const tt_trainer *t) { return t->w; }
int tt_train_threads(const tt_trainer *t) { return t->crew.size; }
int64_t tt_train_first_step(const tt_trainer *t) { return t->first_step; }
const char *tt_train_best(const tt_trainer *t) { return t->save.best.sign ? t->save.best_text : ""; }
