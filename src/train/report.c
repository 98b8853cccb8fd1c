/* report: what a run leaves behind for people and other programs: the run folder's files. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer.h"

double metric_of(const tt_trainer *t, const goal *g)
{
    const tt_metrics *v = &t->progress.val;

    if (!g->sign) return NAN;
    if (!strcmp(g->metric, "val.loss")) return v->loss;
    for (int i = 0; i < TT_METRICS; i++)
        if (!strcmp(g->metric + 4, tt_metric_table[i].name) && is_val(g)) return tt_metric_of(v, i);
    return t->progress.loss_mean;
}

static tt_err write_env(tt_trainer *t)
{
    char host[256] = "", cpu[256];
    json_t *env;
    char *text;
    tt_err err;

    gethostname(host, sizeof host - 1);
    env =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:s*, s:b}", "version", TT_VERSION, "host", host,
                  "cpu", tt_cpu_model(cpu, sizeof cpu), "kernels", tt_model_kernels(t->model)->name,
                  "precision", precision_name(tt_model_kernels(t->model)->precision), "threads",
                  t->threads, "init", t->init, "partial", t->init_partial);
    text = env ? json_dumps(env, JSON_INDENT(2)) : NULL;
    json_decref(env);
    if (!text) return tt_fail(TT_ENOMEM, "no memory for env.json");
    err = tt_run_dir_write(t->dir, "env.json", text);
    free(text);
    return err;
}

void report_read_init(tt_trainer *t)
{
    char path[4200];
    json_t *env;
    const char *init;

    if (!t->dir) return;
    snprintf(path, sizeof path, "%s/env.json", t->dir->path);
    env = json_load_file(path, 0, NULL);
    if ((init = json_string_value(json_object_get(env, "init")))) {
        if (!(t->init = strdup(init))) tt_mem_out(strlen(init));
        t->init_partial = json_is_true(json_object_get(env, "partial"));
    }
    json_decref(env);
}

static int open_log(tt_trainer *t)
{
    char path[4200];
    int e;

    snprintf(path, sizeof path, "%s/log.txt", t->dir->path);
    e = tt_log_open(path);
    t->logging = !e;
    return e;
}

void report_log(tt_trainer *t)
{
    int e = open_log(t);

    if (e) tt_warn("no log: %s/log.txt: %s", t->dir->path, strerror(e));
}

/* The resolved job: as it was read, with what was decided here. */
static tt_err write_resolved(tt_trainer *t, const tt_train_opts *o)
{
    tt_node *train = t->job.train, *threads = tt_node_get(train, "threads");
    char text[16];
    tt_str s = {0};
    tt_err err;

    snprintf(text, sizeof text, "%d", t->threads);
    tt_node_add(train, "threads", tt_node_scalar(o->job, threads, text));
    if (t->plan.exact) { /* the bits depend on these two, wherever it is resumed */
        tt_node *parallel = t->job.parallel, *grains = tt_node_get(parallel, "grains"),
                *kernels = tt_node_get(train, "kernels");
        snprintf(text, sizeof text, "%d", t->plan.grains);
        tt_node_add(parallel, "grains", tt_node_scalar(o->job, grains, text));
        tt_node_add(train, "kernels",
                    tt_node_scalar(o->job, kernels, tt_model_kernels(t->model)->name));
    }
    if ((err = tt_job_settle(o->job))) return err;
    tt_tree_print(tt_tree_root(o->job), true, &s);
    err = tt_run_dir_write(t->dir, "resolved.yaml", s.data);
    tt_str_free(&s);
    return err;
}

/* The job as the user wrote it; where only the tree is known, as that reads. */
static tt_err write_given(tt_trainer *t, const tt_train_opts *o)
{
    tt_bytes b = {0};
    tt_str s = {0};
    tt_err err = TT_OK;

    if (o->job_path && !tt_file_read(o->job_path, 0, &b))
        tt_str_put(&s, b.data, b.size);
    else
        tt_tree_print(tt_tree_root(o->job), false, &s);
    err = tt_run_dir_write(t->dir, "job.yaml", s.data ? s.data : "");
    tt_file_release(&b);
    tt_str_free(&s);
    return err;
}

static tt_err open_metrics(tt_trainer *t)
{
    char path[4200];
    tt_err err = TT_OK;

    snprintf(path, sizeof path, "%s/metrics.jsonl", t->dir->path);
    if (!t->journal) err = tt_journal_open(path, t->journal_after, &t->journal);
    if (!err && !t->events) err = tt_events_open(t->dir->path, &t->events);
    return err;
}

static tt_err write_files(tt_trainer *t, const tt_train_opts *o)
{
    tt_err err;

    if (!t->dir->resumed) {
        if ((err = write_given(t, o))) return err;
        if (o->command && (err = tt_run_dir_write(t->dir, "command.txt", o->command))) return err;
    }
    if ((err = write_resolved(t, o))) return err;
    return write_env(t);
}

/* ---- Metrics that cannot be written do not stop a training: it is told, and when it is over, what
 * is lost. ---- */

static void mourn(tt_trainer *t)
{
    if (!*t->metrics_trouble) {
        tt_warn("metrics are lost, the training goes on without: %s", tt_message());
        snprintf(t->metrics_trouble, sizeof t->metrics_trouble, "metrics are lost: %.400s",
                 tt_message());
    }
}

static void see_over(tt_trainer *t)
{
    if (!t->lines_lost && !t->flush_failed && !t->events_failed) t->metrics_trouble[0] = 0;
}

/* Of a line that was to be written. */
static void journal(tt_trainer *t, tt_err err)
{
    if (err) {
        mourn(t);
        t->lines_lost++;
    } else if (t->lines_lost) {
        tt_warn("metrics are written again; %lld line%s of metrics.jsonl %s lost",
                (long long)t->lines_lost, t->lines_lost == 1 ? "" : "s",
                t->lines_lost == 1 ? "is" : "are");
        t->lines_lost = 0;
        see_over(t);
    }
}

static void look_at(tt_trainer *t, tt_err err, bool *failed)
{
    *failed = err != TT_OK;
    if (err)
        mourn(t);
    else
        see_over(t);
}

static void event(tt_trainer *t, const char *tag, double value)
{
    if (!t->events || isnan(value) || !tt_events_scalar(t->events, t->step, tag, value)) return;
    t->events_failed = true; /* until a flush succeeds: most calls only gather */
    mourn(t);
}

static void flush(tt_trainer *t)
{
    if (t->journal) look_at(t, tt_journal_flush(t->journal), &t->flush_failed);
    if (t->events) look_at(t, tt_events_flush(t->events), &t->events_failed);
}

/* Can a line be written? One that cannot is lost. */
static bool ready(tt_trainer *t)
{
    const double again_s = 1;
    double now = tt_clock_s();

    if (!t->dir) return false;
    if ((!t->journal || !t->events || !t->logging) && now >= t->reopen_at) {
        t->reopen_at = now + again_s;
        if (!t->logging) open_log(t);
        if (open_metrics(t)) mourn(t);
    }
    if (!t->journal) t->lines_lost++;
    return t->journal != NULL;
}

void report_trouble(tt_trainer *t)
{
    t->progress.save_trouble = *t->trouble           ? t->trouble
                               : *t->metrics_trouble ? t->metrics_trouble
                                                     : NULL;
}

/* A run that has begun goes on even if the disk takes nothing any more. */
tt_err report_open(tt_trainer *t, const tt_train_opts *o, int64_t after_step)
{
    bool goes_on = t->dir->resumed && !t->from_disk;
    tt_err err = write_files(t, o);

    if (err && !goes_on) return err;
    if (err) tt_warn("%s", tt_message());
    t->journal_after = t->dir->resumed ? (after_step < 0 ? 0 : after_step) : -1;
    if ((err = open_metrics(t)) && !goes_on) return err;
    if (err) mourn(t);
    t->reopen_at = tt_clock_s();
    tt_info("%s: %lld parameters, %s, %s kernels, %d threads", t->job.name,
            (long long)tt_train_parameters(t),
            precision_name(tt_model_kernels(t->model)->precision), tt_model_kernels(t->model)->name,
            t->threads);
    return TT_OK;
}

void report_step(tt_trainer *t)
{
    const tt_progress *p = &t->progress;

    if ((t->step % t->conf.log_every && !p->epoch_end && !p->end) || !ready(t)) return;
    const tt_field field[] = {{"epoch", p->epoch},
                              {"loss", p->loss},
                              {"lr", p->lr},
                              {"grad_norm", p->grad_norm},
                              {"samples_per_s", p->samples_per_s},
                              {"step_ms", 1e3 * p->step_s},
                              {"data_ms", 1e3 * p->data_s},
                              {"forward_ms", 1e3 * p->forward_s},
                              {"backward_ms", 1e3 * p->backward_s},
                              {"optim_ms", 1e3 * p->optim_s},
                              {"tokens_per_s", p->tokens_per_s}};
    int count = TT_COUNT(field) - !(p->tokens_per_s > 0);
    journal(t, tt_journal_line(t->journal, t->step, "train", field, count));
    event(t, "train/loss", p->loss);
    event(t, "optim/lr", p->lr);
    event(t, "optim/grad_norm", p->grad_norm);
    event(t, "perf/samples_per_sec", p->samples_per_s);
    if (p->tokens_per_s > 0) event(t, "perf/tokens_per_sec", p->tokens_per_s);
    event(t, "perf/step_ms", 1e3 * p->step_s);
    event(t, "data/wait_ms", 1e3 * p->data_s);
    if (p->epoch_end || p->end) flush(t);
}

void report_generation(tt_trainer *t)
{
    int workers = working(t);
    char text[512];

    if (!t->told.generation) return;
    snprintf(text, sizeof text, "generation %u with %d worker%s goes on after step %lld%s%s",
             t->told.generation, workers, workers == 1 ? "" : "s", (long long)t->step,
             t->told.why ? "; the one before ended: " : "", t->told.why ? t->told.why : "");
    tt_info("%s", text);
    if (!ready(t)) return;
    journal(t, tt_journal_event(t->journal, t->step, "generation", text));
    flush(t);
}

void report_numbers(tt_trainer *t, const char *what)
{
    tt_info("%s", t->news);
    if (!ready(t)) return;
    journal(t, tt_journal_event(t->journal, t->step, what, t->news));
    flush(t);
}

/* If it cannot be mended now, that is done when it can be: until then no line is written. */
void report_go_back(tt_trainer *t)
{
    if (!t->dir) return;
    tt_journal_close(t->journal);
    t->journal = NULL;
    t->journal_after = t->step;
    if (open_metrics(t)) mourn(t);
    t->reopen_at = tt_clock_s();
}

void report_validation(tt_trainer *t)
{
    const tt_metrics *v = &t->progress.val;
    tt_field field[2 + TT_METRICS] = {{"epoch", t->progress.epoch}, {"loss", v->loss}};
    int count = 2;
    tt_str text = {0};

    for (int i = 0; i < TT_METRICS; i++) {
        if (isnan(tt_metric_of(v, i))) continue;
        field[count++] = (tt_field){tt_metric_table[i].name, tt_metric_of(v, i)};
        tt_str_add(&text, " %s %.4f", tt_metric_table[i].name, tt_metric_of(v, i));
    }
    tt_info("step %lld: validation loss %.5f%s", (long long)t->step, v->loss,
            text.data ? text.data : "");
    tt_str_free(&text);
    if (!ready(t)) return;
    journal(t, tt_journal_line(t->journal, t->step, "val", field, count));
    event(t, "val/loss", v->loss);
    for (int i = 2; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "val/%s", field[i].name);
        event(t, name, field[i].value);
    }
}

static void put(json_t *o, const char *key, double v)
{
    if (isfinite(v)) json_object_set_new(o, key, json_real(v));
}

json_t *tt_train_summary(tt_trainer *t)
{
    const tt_metrics *v = &t->progress.val;
    json_t *train = json_object(), *val = json_object();
    char sha[65];

    tt_train_sha(t, sha);
    put(train, "loss", t->final_loss);
    put(val, "loss", v->loss);
    for (int i = 0; i < TT_METRICS; i++) put(val, tt_metric_table[i].name, tt_metric_of(v, i));
    for (int i = 0; i < tt_model_loss_count(t->model) && tt_model_loss_count(t->model) > 1; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%d", tt_model_loss_name(t->model, i), i + 1);
        put(val, key, v->part[i]);
    }
    json_t *s = json_pack(
        "{s:s, s:I, s:f, s:o, s:o, s:s, s:f, s:I, s:i, s:i, s:s, s:s, s:s}", "name", t->job.name,
        "steps", (json_int_t)t->step, "epochs", (double)t->step / (double)t->epoch_steps, "train",
        train, "val", val, "weights_sha256", sha, "seconds", t->seconds + tt_clock_s() - t->started,
        "parameters", (json_int_t)tt_train_parameters(t), "workers", working(t), "threads",
        t->threads, "kernels", tt_model_kernels(t->model)->name, "precision",
        precision_name(tt_model_kernels(t->model)->precision), "version", TT_VERSION);
    put(s, "samples_per_s", t->progress.samples_per_s);
    if (t->progress.tokens_per_s > 0) put(s, "tokens_per_s", t->progress.tokens_per_s);
    if (t->save.best.sign && !isnan(t->best))
        json_object_set_new(
            s, "best", json_pack("{s:s, s:f}", "metric", t->save.best.metric, "value", t->best));
    return s;
}

/* What is on disk, or can be had again, need not stay in memory. */
static void note_end(tt_trainer *t, tt_err saved, const char *status)
{
    t->safe = !saved && (!strcmp(status, "done") || !strcmp(status, "stopped"));
}

void tt_train_leave(tt_trainer *t)
{
    if (t->keep && !all_agree(t, t->safe ? TT_OK : TT_ECKPT)) keep_close(t, true);
}

tt_err tt_train_finish(tt_trainer *t, const char *status)
{
    tt_err err = TT_OK, saved = TT_OK;
    char trouble[512] = "", message[512] = "";
    json_t *s;
    char *text;

    if (!t->dir) {
        if (t->saver) saved = tt_saver_wait(t->saver);
        note_end(t, saved, status);
        return saved;
    }
    if (t->saver && (saved = tt_saver_wait(t->saver))) {
        snprintf(trouble, sizeof trouble, "the last checkpoint was not saved: %s", tt_message());
        if (!strcmp(status, "done")) status = "failed"; /* what was learnt is lost */
    }
    s = tt_train_summary(t);
    json_object_set_new(s, "status", json_string(status));
    if (*trouble) json_object_set_new(s, "checkpoint_trouble", json_string(trouble));
    text = json_dumps(s, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(s);
    if (!text) return tt_fail(TT_ENOMEM, "no memory for summary.json");
    if ((err = tt_run_dir_write(t->dir, "summary.json", text)))
        snprintf(message, sizeof message, "%s", tt_message());
    free(text);
    tt_info("ended: %s at step %lld", status, (long long)t->step);
    if (ready(t)) journal(t, tt_journal_event(t->journal, t->step, "end", status));
    flush(t);
    if (t->lines_lost)
        tt_warn("%lld line%s of metrics.jsonl %s lost", (long long)t->lines_lost,
                t->lines_lost == 1 ? "" : "s", t->lines_lost == 1 ? "is" : "are");
    note_end(t, saved, status);
    return saved ? tt_repeat(TT_ECKPT, trouble) : err ? tt_repeat(err, message) : TT_OK;
}
