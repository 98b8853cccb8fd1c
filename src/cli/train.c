/* train: a job becomes a run.
 *
 * Ctrl-C once, SIGTERM or SIGUSR1: the step is finished, a checkpoint saved and the command that
 * resumes is told. Ctrl-C twice: out at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

typedef struct train_opts {
    tt_opt_list set;
    int64_t threads;
    const char *run, *runs, *resume, *init;
    bool partial, quiet, json;
} train_opts;

static const tt_option options[] = {
    {"set", 's', TT_OPT_LIST, offsetof(train_opts, set), "KEY=VALUE",
     "override a key of the job; may be repeated"},
    {"threads", 't', TT_OPT_INT, offsetof(train_opts, threads), "N",
     "threads to train with; 0: as the job says, else as the resumed run had, else all CPUs"},
    {"run", 0, TT_OPT_STRING, offsetof(train_opts, run), "DIR",
     "the run folder; else a new one below --runs"},
    {"runs", 0, TT_OPT_STRING, offsetof(train_opts, runs), "DIR", "where run folders are; runs"},
    {"resume", 'r', TT_OPT_STRING, offsetof(train_opts, resume), "auto|RUN",
     "go on with a run from its newest valid checkpoint, with as many threads as it had; auto: the "
     "one of --run, else the newest of this name, model and data that is not done, else start "
     "anew"},
    {"init", 0, TT_OPT_STRING, offsetof(train_opts, init), "FILE",
     "start from these weights: a run, a checkpoint or a safetensors file"},
    {"partial", 0, TT_OPT_FLAG, offsetof(train_opts, partial), NULL,
     "with --init: take what matches and list the rest"},
    {"quiet", 'q', TT_OPT_FLAG, offsetof(train_opts, quiet), NULL, "print nothing but errors"},
    {"json", 0, TT_OPT_FLAG, offsetof(train_opts, json), NULL,
     "print progress and summary as JSON, one object per line"},
};

/* ---- signals ---- */

static volatile sig_atomic_t asked; /* the signal that asked to stop */

static void on_signal(int sig)
{
    static const char bye[] = "\ntutti: quit without saving\n";

    if (sig == SIGINT && asked == SIGINT) {
        ssize_t ignored = write(STDERR_FILENO, bye, sizeof bye - 1);
        (void)ignored;
        _exit(CLI_INTERRUPTED);
    }
    if (!asked || sig == SIGINT) asked = sig;
}

static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    for (int i = 0; i < TT_COUNT(signals); i++) sigaction(signals[i], &act, NULL);
    act.sa_handler = SIG_IGN; /* who reads the display may go; the training goes on */
    sigaction(SIGPIPE, &act, NULL);
}

/* ---- which run ---- */

static bool has_checkpoint(const char *run)
{
    char folder[CLI_PATH + 16];
    tt_ckpt_info *list = NULL;
    int count = 0;
    bool found = false;

    snprintf(folder, sizeof folder, "%s/checkpoints", run);
    if (!tt_file_exists(folder) || tt_ckpt_list(folder, false, &list, &count)) return false;
    for (int i = 0; i < count; i++) found |= list[i].newest;
    free(list);
    return found;
}

static bool same_text(const char *a, const char *b)
{
    double x, y;
    return !strcmp(a, b) || (tt_parse_number(a, &x) && tt_parse_number(b, &y) && x == y);
}

/* Do two resolved values differ? Then `path`, which names them, is led on to where they first do.
 * The order of keys plays no part. */
static bool differ(const tt_node *a, const tt_node *b, tt_str *path)
{
    const tt_node *item;

    if (!a || !b || a->kind != b->kind) return true;
    if (a->kind == TT_SCALAR) return !same_text(a->text, b->text);
    for (int i = 0; i < a->count; i++) {
        size_t size = path->size;
        if (a->kind == TT_MAP) {
            tt_str_add(path, ".%s", a->key[i]->text);
            item = tt_node_get(b, a->key[i]->text);
        } else {
            tt_str_add(path, ".%d", i);
            item = i < b->count ? b->item[i] : NULL;
        }
        if (differ(a->item[i], item, path)) return true;
        path->data[path->size = size] = 0;
    }
    if (a->count == b->count) return false;
    for (int i = 0; i < b->count && a->kind == TT_MAP; i++)
        if (!tt_node_get(a, b->key[i]->text)) {
            tt_str_add(path, ".%s", b->key[i]->text);
            break;
        }
    return true;
}

/* Why a run cannot be one of this job (resolved), in *why; nothing there if it can. A run of
 * another name is no candidate at all: false. */
static bool is_candidate(const char *run, tt_tree *job, tt_str *why)
{
    static const char *const parts[] = {"model", "data"};
    char path[CLI_PATH + 16];
    tt_tree *t = NULL;
    bool named;

    snprintf(path, sizeof path, "%s/resolved.yaml", run);
    if (!tt_file_exists(path) || tt_tree_load(path, &t)) return false;
    const tt_node *name = tt_tree_get(t, "name"), *wanted = tt_tree_get(job, "name");
    named = name && wanted && name->kind == TT_SCALAR && !strcmp(name->text, wanted->text);
    for (int i = 0; named && i < TT_COUNT(parts) && !why->size; i++) {
        tt_str at = {0};
        tt_str_add(&at, "%s", parts[i]);
        if (differ(tt_tree_get(t, parts[i]), tt_tree_get(job, parts[i]), &at))
            tt_str_add(why, "its %s differs from the job's", at.data);
        tt_str_free(&at);
    }
    tt_tree_close(t);
    return named;
}

/* The newest run of this job that is not done; "" if there is none. One that is still running
 * counts: training the same job twice at once is hardly meant, and opening it says who has it. */
static tt_err find_unfinished(const char *runs, tt_tree *given, bool quiet, char out[CLI_PATH])
{
    tt_tree *job = NULL;
    tt_run_info *list;
    bool absent;
    int count;
    tt_err err;

    out[0] = 0;
    if ((err = tt_run_list(runs, &list, &count))) return err;
    for (int i = count - 1; i >= 0 && !*out; i--) {
        tt_str why = {0};
        if (!strcmp(list[i].status, "done")) continue;
        if (!job) { /* as its run folder would have it: then the two can be compared */
            job = tt_tree_copy(given);
            err = tt_job_check_data(job, &absent);
            if (!err && absent) err = tt_repeat(TT_EDATA, tt_message());
            if (err || (err = tt_job_settle(job))) break;
        }
        if (!is_candidate(list[i].path, job, &why)) continue;
        if (!why.size && strcmp(list[i].status, "running") && !has_checkpoint(list[i].path))
            tt_str_add(&why, "it has no checkpoint");
        if (!why.size)
            memcpy(out, list[i].path, CLI_PATH);
        else if (!quiet)
            fprintf(stderr, "passed over %s: %s\n", list[i].path, why.data);
        tt_str_free(&why);
    }
    tt_tree_close(job);
    tt_run_free(list, count);
    return err;
}

/* With --resume: whether there is something to resume, and where. */
static tt_err choose_run(const train_opts *o, const cli_job *j, char run[CLI_PATH], bool *resume)
{
    tt_run_info info = {0};
    tt_err err;

    run[0] = 0;
    *resume = false;
    if (o->run && snprintf(run, CLI_PATH, "%s", o->run) >= CLI_PATH)
        return tt_fail(TT_EINVAL, "--run: the path is too long");
    if (!o->resume) return TT_OK;
    if (strcmp(o->resume, "auto")) {
        *resume = true;
        return cli_run_find(o->resume, o->runs, run);
    }
    if (o->run) {
        *resume = tt_file_exists(run) && !tt_run_look(run, &info);
        json_decref(info.summary);
    } else {
        if ((err = find_unfinished(o->runs, j->tree, o->quiet, run))) return err;
        *resume = *run != 0;
    }
    if (!*resume && !o->quiet) fprintf(stderr, "nothing to resume: a new run starts\n");
    return TT_OK;
}

/* ---- what is told before and after ---- */

static void print_banner(const tt_trainer *t)
{
    const tt_model *m = tt_train_model(t);
    const tt_data *d = tt_train_data(t);
    int threads = tt_train_threads(t);
    char params[32];

    printf("%s: %s parameters, %.4g MFLOPs forward a sample\n", tt_train_name(t),
           tt_show_count(tt_train_parameters(t), params, sizeof params), tt_model_flops(m) / 1e6);
    printf("  train    %s\n", tt_data_describe(d, TT_TRAIN));
    if (tt_data_count(d, TT_VAL)) printf("  val      %s\n", tt_data_describe(d, TT_VAL));
    printf("  kernels  %s, %d thread%s\n", tt_model_kernels(m)->name, threads,
           threads == 1 ? "" : "s");
    printf("  run      %s\n", tt_train_run(t));
    if (tt_train_first_step(t) > 0)
        printf("  resumed  at step %s\n",
               tt_show_count(tt_train_first_step(t), params, sizeof params));
    fflush(stdout);
}

static void print_json_start(const tt_trainer *t)
{
    const tt_model *m = tt_train_model(t);

    cli_json_print(stdout,
                   json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:i, s:I}", "event", "start",
                             "name", tt_train_name(t), "run", tt_train_run(t), "parameters",
                             (json_int_t)tt_train_parameters(t), "train_samples",
                             (json_int_t)tt_data_count(tt_train_data(t), TT_TRAIN), "val_samples",
                             (json_int_t)tt_data_count(tt_train_data(t), TT_VAL), "kernels",
                             tt_model_kernels(m)->name, "threads", tt_train_threads(t),
                             "first_step", (json_int_t)tt_train_first_step(t)),
                   true);
    fflush(stdout);
}

static double number_in(const json_t *j, const char *group, const char *key)
{
    const json_t *v = json_object_get(group ? json_object_get(j, group) : j, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void print_next(const json_t *s, const tt_trainer *t, tt_tree *job, bool done)
{
    bool by_steps = tt_tree_get(job, "train.steps") != NULL;
    tt_str p = {0}, r = {0};

    cli_quote(cli_program, &p);
    cli_quote(tt_train_run(t), &r);
    printf("\nNext:\n");
    if (tt_data_count(tt_train_data(t), TT_VAL))
        printf("  %s eval %s\n  %s predict %s --limit 10\n", p.data, r.data, p.data, r.data);
    printf("  %s train --resume %s", p.data, r.data);
    if (done && by_steps)
        printf(" -s train.steps=%lld", 2 * llround(number_in(s, NULL, "steps")));
    else if (done)
        printf(" -s train.epochs=%lld", 2 * llround(ceil(number_in(s, NULL, "epochs"))));
    printf("\n");
    tt_str_free(&p);
    tt_str_free(&r);
}

/* `end` says why, if that is not plain. */
static void print_end(const json_t *s, const tt_trainer *t, tt_tree *job, const char *status,
                      const char *end)
{
    char text[200], count[32], took[32];
    tt_metrics val = {.loss = number_in(s, "val", "loss"),
                      .accuracy = number_in(s, "val", "accuracy"),
                      .top5 = number_in(s, "val", "top5")};
    const char *sha = json_string_value(json_object_get(s, "weights_sha256"));
    double steps = number_in(s, NULL, "steps"), epochs = number_in(s, NULL, "epochs");
    double loss = number_in(s, "train", "loss"), rate = number_in(s, NULL, "samples_per_s");

    printf("\n%s%s%s%s: %s step%s, %.4g epoch%s in %s\n", status, end ? " (" : "", end ? end : "",
           end ? ")" : "", tt_show_count(isnan(steps) ? 0 : llround(steps), count, sizeof count),
           steps == 1 ? "" : "s", epochs, epochs == 1 ? "" : "s",
           tt_show_time(number_in(s, NULL, "seconds"), took, sizeof took));
    if (!isnan(loss)) printf("  train    loss %.4g\n", loss);
    if (!isnan(val.loss)) {
        cli_metrics_show(&val, text, sizeof text);
        printf("  val      %s\n", text);
    }
    if (rate > 0)
        printf("  speed    %s samples/s\n", tt_show_count(llround(rate), count, sizeof count));
    if (sha) printf("  weights  sha256 %s\n", sha);
    printf("  run      %s\n", tt_train_run(t));
    print_next(s, t, job, !strcmp(status, "done"));
}

/* ---- the loop ---- */

/* Trains until there is nothing left to do, or to the signal. */
static tt_err run_steps(tt_trainer *t, cli_display *d, const char **end)
{
    tt_progress p;
    tt_err err;

    *end = NULL;
    do {
        if ((err = tt_train_step(t, &p))) return err;
        cli_display_step(d, &p);
        *end = p.end;
    } while (!*end && !asked);
    return TT_OK;
}

/* Stopped by a signal: nothing is lost. The error is that of the save. */
static tt_err stop(tt_trainer *t, cli_display *d)
{
    cli_display_note(d, "stopping: saving a checkpoint (Ctrl-C again quits without)");
    return tt_train_save(t);
}

static const char *status_of(tt_err err, bool ended)
{
    if (err == TT_EDIVERGED) return "diverged";
    return err ? "failed" : ended ? "done" : "stopped";
}

static int train(tt_trainer *t, tt_tree *job, cli_display_mode mode)
{
    cli_display *d = cli_display_open(mode, t);
    tt_str trouble = {0}, resume = {0};
    const char *end, *status;
    tt_err err, last;
    json_t *summary;
    int code = 0;

    if ((err = run_steps(t, d, &end))) {
        tt_str_add(&trouble, "%s", tt_message());
    } else if (!end && stop(t, d)) {
        tt_str_add(&trouble, "nothing was saved: %s", tt_message());
        err = TT_ECKPT; /* whatever it was, there is no checkpoint of this step */
    }
    status = status_of(err, end != NULL);
    if ((last = tt_train_finish(t, status)) && !err) {
        tt_str_add(&trouble, "%s", tt_message());
        err = last;
        status = status_of(err, true);
    }
    cli_display_leave(d);

    if (!(summary = tt_train_summary(t))) summary = json_object();
    if (mode == CLI_JSON) {
        json_object_set_new(summary, "event", json_string("end"));
        json_object_set_new(summary, "status", json_string(status));
        json_object_set_new(summary, "run", json_string(tt_train_run(t)));
        cli_json_print(stdout, json_incref(summary), true);
    } else if (mode == CLI_SHOW && !err) {
        print_end(summary, t, job, status, end && strcmp(end, "done") ? end : NULL);
    } else if (!err && !end) {
        cli_quote(cli_program, &resume);
        tt_str_add(&resume, " train --resume ");
        cli_quote(tt_train_run(t), &resume);
        fprintf(stderr, "tutti: saved; go on with: %s\n", resume.data);
    }
    json_decref(summary);
    if (err)
        code = cli_fail(tt_repeat(err, trouble.data));
    else if (!end)
        code = asked == SIGINT ? CLI_INTERRUPTED : CLI_REQUEUE;
    cli_display_close(d);
    tt_str_free(&trouble);
    tt_str_free(&resume);
    return code;
}

/* As it was typed, for the run folder. */
static void command_line(tt_str *out)
{
    FILE *f = fopen("/proc/self/cmdline", "re");
    char text[1 << 16];
    size_t size = f ? fread(text, 1, sizeof text - 1, f) : 0;

    if (f) fclose(f);
    text[size] = 0;
    for (size_t at = 0; at < size; at += strlen(text + at) + 1) {
        if (at) tt_str_add(out, " ");
        cli_quote(text + at, out);
    }
    tt_str_add(out, "\n");
}

/* That nobody reads the display any more is no failure of the training. */
static void forget_reader(void)
{
    if (!fflush(stdout) || errno != EPIPE) return;
    __fpurge(stdout);
    clearerr(stdout);
}

static tt_err check_options(const train_opts *o, int argc)
{
    bool named = o->resume && strcmp(o->resume, "auto");

    if (!argc && !named)
        return tt_fail(TT_EINVAL,
                       "'tutti train' needs a JOB, or --resume RUN; see 'tutti train --help'");
    if (named && o->run)
        return tt_fail(TT_EINVAL, "--run and --resume %s both name a run: give one", o->resume);
    if (o->init && named)
        return tt_fail(TT_EINVAL,
                       "--init starts a new run, --resume %s goes on with an old one, which knows "
                       "what it was started from: give one",
                       o->resume);
    if (o->partial && !o->init)
        return tt_fail(TT_EINVAL, "--partial says how to take --init: give both");
    if (o->quiet && o->json) return tt_fail(TT_EINVAL, "--quiet and --json: give one");
    return TT_OK;
}

static int train_run(const void *opts, int argc, const char **argv)
{
    const train_opts *o = opts;
    char run[CLI_PATH], init[CLI_PATH];
    cli_job job = {0};
    tt_train_opts to = {.runs = o->runs, .partial = o->partial};
    cli_display_mode mode = o->json ? CLI_JSON : o->quiet ? CLI_QUIET : CLI_SHOW;
    tt_trainer *t = NULL;
    tt_str command = {0};
    tt_err err;
    int code;

    catch_signals();
    if ((err = check_options(o, argc)) || (err = cli_threads(o->threads, &to.threads)) ||
        (err = cli_job_load(argc ? argv[0] : o->resume, o->runs, &o->set, o->quiet, &job)) ||
        (err = choose_run(o, &job, run, &to.resume)) ||
        (o->init && (err = cli_weights_find(o->init, o->runs, init)))) {
        code = cli_fail(err);
        goto out;
    }
    if (tt_world_started().by && (err = tt_world_join(&to.world))) {
        code = cli_fail(err);
        goto out;
    }
    if (to.world && to.world->rank) mode = CLI_QUIET;
    command_line(&command);
    to.job = job.tree;
    to.job_path = job.path;
    to.run = *run ? run : NULL;
    to.init = o->init ? init : NULL;
    to.command = command.data;
    if ((err = tt_train_open(&to, &t))) {
        code = cli_fail(err);
        goto out;
    }
    if (mode == CLI_JSON)
        print_json_start(t);
    else if (mode == CLI_SHOW)
        print_banner(t);
    code = train(t, job.tree, mode);
out:
    forget_reader();
    tt_train_close(t);
    tt_world_leave(to.world, code);
    tt_log_close();
    cli_job_close(&job);
    tt_str_free(&command);
    return code;
}

const tt_command cli_train = {
    .name = "train",
    .args = "JOB",
    .args_most = 1,
    .brief = "train a job",
    .about = "Trains the job and writes a run folder: the job, metrics, log, checkpoints and a "
             "summary.\n\n"
             "JOB is a job file, or a run whose job is to be trained anew. Ctrl-C once finishes "
             "the step, "
             "saves and prints the command that resumes; twice quits at once. SIGTERM and SIGUSR1 "
             "save and "
             "end with exit code 75, so that a queue starts the job again.",
    .examples =
        (const char *const[]){
            "tutti train job.yaml", "train a job", "tutti train job.yaml -s train.epochs=5",
            "with another value", "tutti train job.yaml --resume auto", "go on where it stopped",
            "tutti train --resume last", "go on with the newest run",
            "tutti train job.yaml --init runs/a", "start from other weights", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(train_opts),
    .run = train_run,
};
