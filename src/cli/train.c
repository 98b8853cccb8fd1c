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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

enum { MOST_JOINED = 1024 };

typedef struct train_opts {
    tt_opt_list set;
    int64_t threads, spares;
    const char *max_restarts, *elastic, *workers, *hosts, *hostfile, *trace, *wait, *listen, *key;
    const char *coordinator;
    const char *run, *runs, *resume, *init;
    bool partial, quiet, json, dry_run, detach;
} train_opts;

static const tt_option options[] = {
    {"set", 's', TT_OPT_LIST, offsetof(train_opts, set), "KEY=VALUE",
     "override a key of the job; may be repeated"},
    {"workers", 'n', TT_OPT_STRING, offsetof(train_opts, workers), "N|A:B",
     "train with N processes, or with A to B of them, as many as there are CPUs; with --hosts or "
     "--hostfile, N on all hosts together, or as many as these have slots; inside an "
     "allocation of Slurm as many as it has tasks, if not given"},
    {"hosts", 'H', TT_OPT_STRING, offsetof(train_opts, hosts), "A:4,B:4",
     "the hosts, and how many workers each takes"},
    {"hostfile", 0, TT_OPT_STRING, offsetof(train_opts, hostfile), "FILE",
     "the same from a file: 'a slots=4', 'a:4' or a name a line"},
    {"elastic", 0, TT_OPT_STRING, offsetof(train_opts, elastic), "A:B", "the same as -n A:B"},
    {"listen", 0, TT_OPT_ADDRESS, offsetof(train_opts, listen), "[tcp://*:PORT]",
     "let other machines join while it runs, by 'tutti join'; at any free port if none is given. "
     "This "
     "one takes as many workers as it has CPUs, or as --hosts says"},
    {"key", 0, TT_OPT_STRING, offsetof(train_opts, key), "FILE",
     "with --listen: the key that machines which join must have; else $TUTTI_KEY or "
     "~/.config/tutti/key, which is made if it is missing"},
    {"spares", 0, TT_OPT_INT, offsetof(train_opts, spares), "K",
     "keep K more workers that hold the state but have no work, to replace lost ones"},
    {"max-restarts", 0, TT_OPT_STRING, offsetof(train_opts, max_restarts), "N",
     "give up after more than N failures in a row without progress between them; 10"},
    {"wait", 0, TT_OPT_STRING, offsetof(train_opts, wait), "TIME",
     "how long too few workers wait for more before the run gives up; 10m, or 10s for a fixed "
     "number on this host"},
    {"coordinator", 0, TT_OPT_STRING, offsetof(train_opts, coordinator), "etcd://HOST:PORT,...",
     "start the same command on several hosts, with the same --run: one supervises, the others "
     "stand by and go on with the run if it is lost"},
    {"threads", 't', TT_OPT_INT, offsetof(train_opts, threads), "N",
     "threads of each worker; 0: as the job says, else as the resumed run had, else its share of "
     "the CPUs"},
    {"run", 0, TT_OPT_STRING, offsetof(train_opts, run), "DIR",
     "the run folder; else a new one below --runs"},
    {"runs", 0, TT_OPT_STRING, offsetof(train_opts, runs), "DIR", "where run folders are; runs"},
    {"resume", 'r', TT_OPT_STRING, offsetof(train_opts, resume), "auto|RUN",
     "go on with a run from its newest valid checkpoint, with as many threads as it had; auto: the "
     "one of --run, else the newest of this name, model and data that is not done, else start "
     "anew"},
    {"trace-steps", 0, TT_OPT_STRING, offsetof(train_opts, trace), "A:B",
     "record what each thread of each worker does in steps A to B, for Perfetto, in the run's "
     "trace/steps.json"},
    {"detach", 0, TT_OPT_FLAG, offsetof(train_opts, detach), NULL,
     "without a terminal: return when the run has begun; it goes on in a session of its own and "
     "prints to its console.log"},
    {"dry-run", 0, TT_OPT_FLAG, offsetof(train_opts, dry_run), NULL,
     "with several workers: show the launcher's command instead of running it"},
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
    sigset_t ours;

    sigemptyset(&ours);
    for (int i = 0; i < TT_COUNT(signals); i++) {
        sigaction(signals[i], &act, NULL);
        sigaddset(&ours, signals[i]);
    }
    /* The launcher of a world has SIGTERM blocked, and that of MPICH hands this down. */
    sigprocmask(SIG_UNBLOCK, &ours, NULL);
    act.sa_handler = SIG_IGN; /* who reads the display may go; the training goes on */
    sigaction(SIGPIPE, &act, NULL);
}

/* ---- the loop ---- */

/* Who listens: the screen here, or the supervisor; on ranks other than 0 nobody. */
typedef struct listener {
    tt_pulse *pulse; /* to the supervisor; NULL: none */
    bool silent;
    cli_display_mode mode;
    json_t *start;
    cli_display *display;
    double sent;
} listener;

static void tell_start(listener *l, tt_trainer *t, tt_tree *job)
{
    if (l->silent) return;
    l->start = cli_told_start(t, job);
    if (l->pulse) {
        tt_pulse_tell(l->pulse, json_incref(l->start));
        return;
    }
    cli_start_show(l->mode, l->start);
    l->display = cli_display_open(l->mode, l->start);
}

static void tell_step(listener *l, tt_trainer *t, const tt_progress *p)
{
    const tt_rank_times *times = tt_train_times(t);
    int ranks = tt_train_world(t)->size;
    double now = tt_clock_s();

    if (l->silent) return;
    if (!l->pulse) {
        cli_display_step(l->display, p, times, ranks);
        return;
    }
    if (p->epoch_samples)
        tt_pulse_tell(l->pulse,
                      json_pack("{s:s, s:I, s:I, s:I, s:I}", "event", "epoch", "epoch",
                                (json_int_t)p->epoch_number, "samples",
                                (json_int_t)p->epoch_samples, "sum", (json_int_t)p->witness_sum,
                                "count", (json_int_t)p->witness_count));
    if (now - l->sent >= 0.1 || p->validated || p->epoch_end || p->end || p->saved || p->stopped ||
        p->left) {
        tt_pulse_tell(l->pulse, cli_step_pack(p, times, ranks));
        l->sent = now;
    }
}

static void tell_note(listener *l, const char *text)
{
    if (l->silent) return;
    if (l->pulse)
        tt_pulse_tell(l->pulse, json_pack("{s:s, s:s}", "event", "note", "text", text));
    else
        cli_display_note(l->display, text);
}

static void tell_numbers(listener *l, const tt_trainer *t, const tt_progress *p)
{
    json_t *blame = json_array();

    for (int r = 0; r < tt_train_world(t)->size; r++)
        if (tt_train_caught(t, r)) json_array_append_new(blame, json_integer(r));
    if (json_array_size(blame) && l->pulse && !l->silent)
        tt_pulse_tell(l->pulse, json_pack("{s:s, s:O}", "event", "caught", "blame", blame));
    json_decref(blame);
    if (p->attempt && l->pulse && !l->silent)
        tt_pulse_tell(l->pulse, json_pack("{s:s, s:I, s:I}", "event", "rollback", "attempt",
                                          (json_int_t)p->attempt, "step", (json_int_t)p->step));
    tell_note(l, p->numbers);
}

static void tell_end(listener *l, json_t *end)
{
    if (l->display) cli_display_leave(l->display);
    if (!end) { /* others go on */
        json_decref(l->start);
        return;
    }
    if (!l->silent && l->pulse && tt_pulse_end(l->pulse, json_incref(end)))
        tt_warn("%s", tt_message());
    if (!l->silent && !l->pulse) cli_end_show(l->mode, l->start, end);
    cli_display_close(l->display);
    json_decref(l->start);
    json_decref(end);
}

/* Trains until there is nothing left to do, or to the signal. */
static tt_err run_steps(tt_trainer *t, listener *l, const char **end, bool *left)
{
    tt_progress p;
    tt_err err;

    *end = NULL;
    do {
        tt_wish wish = tt_pulse_wish(l->pulse);
        if (asked || wish == TT_WISH_SAVE) tt_train_ask_stop(t);
        if (wish == TT_WISH_YIELD) tt_train_ask_leave(t);
        if ((err = tt_train_step(t, &p))) return err;
        if (p.numbers) tell_numbers(l, t, &p);
        tell_step(l, t, &p);
        *end = p.end;
        *left = !p.end && p.left;
    } while (!*end && !p.stopped && !*left);
    return TT_OK;
}

/* Stopped by a signal: nothing is lost. The error is that of the save. */
static tt_err stop(tt_trainer *t, listener *l)
{
    tell_note(l, "stopping: saving a checkpoint (Ctrl-C again quits without)");
    return tt_train_save(t);
}

static const char *status_of(tt_err err, bool ended)
{
    if (err == TT_EDIVERGED) return "diverged";
    return err ? "failed" : ended ? "done" : "stopped";
}

/* *alone: only this rank knows of the error, so the others cannot end by themselves. */
static int train(tt_trainer *t, listener *l, bool *alone, tt_err *met)
{
    tt_str trouble = {0};
    const char *end, *status;
    bool left = false;
    tt_err err, last;
    int code = 0;

    if ((err = run_steps(t, l, &end, &left))) {
        tt_str_add(&trouble, "%s", tt_message());
        /* That numbers ran away all see in the same step, unless they train apart. */
        *alone = err != TT_EDIVERGED || tt_train_plan(t)->aggregate == TT_AVERAGE;
        if (err == TT_EPEER && l->pulse) { /* this world is over, not the run */
            tell_end(l, NULL);
            *met = tt_repeat(err, trouble.data);
            tt_str_free(&trouble);
            return cli_exit_code(err);
        }
    } else if (left) {
        if (!l->silent) tt_pulse_tell(l->pulse, json_pack("{s:s}", "event", "left"));
        if (!tt_train_kept(t) && (err = tt_train_save(t))) *alone = true;
        tell_end(l, NULL);
        *met = err;
        return err ? cli_exit_code(err) : 0;
    } else if (!end && (err = stop(t, l))) {
        tt_str_add(&trouble, "nothing was saved: %s", tt_message());
        *alone = err == TT_EPEER;
        if (!*alone) err = TT_ECKPT; /* whatever it was, there is no checkpoint of this step */
    }
    if (!err && (err = tt_train_compare(t))) {
        tt_str_add(&trouble, "%s", tt_message());
        *alone = err == TT_EPEER && strstr(tt_message(), "no word") != NULL;
    }
    if (err && *alone && l->pulse && tt_train_world(t)->size > 1) {
        /* Not the end of the training, if another world can go on: the supervisor decides that. */
        tell_end(l, NULL);
        *met = tt_repeat(err, trouble.data);
        tt_str_free(&trouble);
        return cli_exit_code(err);
    }
    status = status_of(err, end != NULL);
    TT_FAILPOINT("worker.finish");
    if ((last = tt_train_finish(t, status)) && !err) {
        tt_str_add(&trouble, "%s", tt_message());
        err = last;
        status = status_of(err, true);
    }
    if (err)
        code = cli_exit_code(err);
    else if (!end)
        code = asked == SIGINT ? CLI_INTERRUPTED : CLI_REQUEUE;
    tell_end(l, cli_told_end(t, status, end, code, trouble.data ? trouble.data : ""));
    TT_FAILPOINT("worker.ended");
    if (!*alone) tt_train_leave(t);
    if (err && !*alone && !l->silent && !l->pulse) cli_fail(tt_repeat(err, trouble.data));
    if (err && *alone) tt_repeat(err, trouble.data);
    *met = err;
    tt_str_free(&trouble);
    return code;
}

/* As it was typed, for the run folder; a worker has it from its supervisor. */
static void command_line(tt_str *out)
{
    const char *typed = getenv("TUTTI_COMMAND");

    if (typed && getenv("TUTTI_SUPERVISED")) {
        tt_str_add(out, "%s", typed);
        return;
    }
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

void cli_forget_reader(void)
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
    if (o->detach && o->dry_run)
        return tt_fail(TT_EINVAL, "--dry-run starts nothing that could be detached");
    if (o->elastic && o->workers)
        return tt_fail(TT_EINVAL, "--elastic and --workers both say how many: give one");
    if (o->spares < 0 || o->spares > 1024)
        return tt_fail(TT_EINVAL, "--spares: %lld is not 0 to 1024", (long long)o->spares);
    if (o->listen && *o->listen && strncmp(o->listen, "tcp://", 6))
        return tt_fail(TT_EINVAL, "--listen: '%s' is no address such as tcp://*:4444", o->listen);
    if (o->key && !o->listen)
        return tt_fail(TT_EINVAL, "--key is for machines that join: give --listen too");
    if (o->hosts && o->hostfile)
        return tt_fail(TT_EINVAL, "--hosts and --hostfile both name the hosts: give one");
    if (o->coordinator && !o->run && !named)
        return tt_fail(TT_EINVAL, "--coordinator needs --run DIR, a folder that all supervisors "
                                  "of the run see");
    return TT_OK;
}

/* "4", "2:8" */
static tt_err read_workers(const char *option, const char *text, int *least, int *most)
{
    const char *colon = text ? strchr(text, ':') : NULL;
    char first[32] = "";
    int64_t a = 0, b = 0;

    *least = *most = 0;
    if (!text) return TT_OK;
    if (colon) snprintf(first, sizeof first, "%.*s", (int)(colon - text), text);
    bool fine = tt_parse_int(colon ? colon + 1 : text, &b) && b >= 1 && b <= 65536;
    if (fine && colon) fine = tt_parse_int(first, &a) && a >= 1 && a <= b;
    if (!fine)
        return tt_fail(TT_EINVAL, "--%s: '%s' is neither 1 to 65536 nor a range such as 2:8",
                       option, text);
    *least = (int)a;
    *most = (int)b;
    return TT_OK;
}

static tt_err read_restarts(const char *text, int *out)
{
    int64_t n;

    if (!text) return TT_OK;
    if (!tt_parse_int(text, &n) || n < 0 || n > 1000000)
        return tt_fail(TT_EINVAL, "--max-restarts: '%s' is not 0 to 1000000", text);
    *out = (int)n;
    return TT_OK;
}

static json_t *error_of(tt_err err)
{
    return json_pack("{s:s, s:i, s:s}", "event", "error", "exit_code", cli_exit_code(err),
                     "message", tt_message());
}

/* An error that this rank alone has met, or that others must not wait for: it says so, and the
 * world ends. */
static int fail_alone(const listener *l, const tt_world *w, const tt_trainer *t, tt_err err)
{
    json_t *blame = json_array(), *told;

    for (int r = 0; t && r < w->size; r++)
        if (tt_train_odd(t, r)) json_array_append_new(blame, json_integer(r));
    if (!json_array_size(blame)) tt_context(err, "rank %d (%s)", w->rank, w->peer[w->rank].name);
    if (!l->pulse) {
        json_decref(blame);
        return cli_fail(err);
    }
    told = error_of(err);
    json_object_set_new(told, "blame", blame);
    tt_pulse_tell(l->pulse, told);
    return cli_exit_code(err);
}

/* One that all have agreed on: rank 0 says so, and whose it was. */
static int fail_together(const listener *l, tt_err err)
{
    json_t *o;

    if (l->silent) return cli_exit_code(err);
    if (!l->pulse) return cli_fail(err);
    o = error_of(err);
    if (tt_group_blamed() >= 0) json_object_set_new(o, "rank", json_integer(tt_group_blamed()));
    tt_pulse_tell(l->pulse, o);
    return cli_exit_code(err);
}

static tt_err read_trace(const char *text, int64_t *from, int64_t *to)
{
    char a[32], b[32], rest;

    if (!text) return TT_OK;
    if (sscanf(text, "%31[0-9]:%31[0-9]%c", a, b, &rest) == 2 && tt_parse_int(a, from) &&
        tt_parse_int(b, to) && *from >= 1 && *to >= *from)
        return TT_OK;
    return tt_fail(TT_EINVAL,
                   "--trace-steps: '%s' is no range of steps: say 100:120, the first step is 1",
                   text);
}

/* The run folder and the weights to start from. Rank 0 alone reads and writes them: others may be
 * on hosts that do not have them. */
static tt_err find_files(const train_opts *o, const cli_run_opts *which, const cli_job *job,
                         bool silent, char run[CLI_PATH], char init[CLI_PATH], bool *resume)
{
    tt_err err;

    if (getenv("TUTTI_CONTROL")) { /* the supervisor has decided */
        *resume = false;
        snprintf(run, CLI_PATH, "%s", o->run ? o->run : "");
        snprintf(init, CLI_PATH, "%s", o->init ? o->init : "");
        return o->init && !silent ? cli_weights_find(o->init, o->runs, init) : TT_OK;
    }
    if (!silent) {
        if ((err = cli_run_choose(which, job, run, resume))) return err;
        return o->init ? cli_weights_find(o->init, o->runs, init) : TT_OK;
    }
    *resume = o->resume && strcmp(o->resume, "auto");
    snprintf(run, CLI_PATH, "%s", *resume ? o->resume : o->run ? o->run : "");
    snprintf(init, CLI_PATH, "%s", o->init ? o->init : "");
    return TT_OK;
}

/* Supervised: it stands by until it is this world's turn, and says from where it goes on. */
static tt_err take_turn(tt_trainer *t, listener *l)
{
    tt_train_found found;
    tt_go go;
    tt_err err;

    TT_FAILPOINT("worker.ready");
    if ((err = tt_pulse_ready(l->pulse, &go))) return err;
    TT_FAILPOINT("worker.go");
    tt_train_told told = {go.generation, go.known, go.told, *go.why ? go.why : NULL};
    if ((err = tt_train_find(t, &told, &found))) return err;
    TT_FAILPOINT("worker.find");
    if (!l->silent) err = tt_pulse_found(l->pulse, found.label, found.made, found.lost);
    TT_FAILPOINT("worker.found");
    return err ? err : tt_train_begin(t);
}

/* Without it the steps since the last checkpoint are lost with a worker. For measuring. */
static bool wants_vault(void)
{
    const char *text = getenv("TUTTI_VAULT");

    return !text || strcmp(text, "0");
}

static int work(const train_opts *o, int argc, const char **argv)
{
    char run[CLI_PATH], init[CLI_PATH];
    cli_job job = {0};
    tt_train_opts to = {.runs = o->runs, .partial = o->partial};
    listener l = {.mode = o->json ? CLI_JSON : o->quiet ? CLI_QUIET : CLI_SHOW};
    cli_run_opts which = {o->run, o->runs, o->resume, o->quiet};
    tt_started by = tt_world_started();
    bool alone = false;
    cli_share share = {0};
    cli_live live = {.fd = -1};
    tt_trainer *t = NULL;
    tt_str command = {0};
    tt_err err;
    int code;

    if (by.by) tt_failpoint_rank(by.rank);
    if (by.by && (err = tt_pulse_open(by.rank, &l.pulse))) return cli_fail(err);
    TT_FAILPOINT("worker.start");
    if (by.by && (err = tt_world_join(&to.world))) {
        tt_pulse_tell(l.pulse, error_of(err));
        tt_pulse_close(l.pulse);
        return cli_fail(err);
    }
    TT_FAILPOINT("worker.joined");
    l.silent = to.world && to.world->rank;
    tt_failpoint_rank(to.world ? to.world->rank : 0);
    which.quiet |= l.pulse != NULL;
    if (to.world && !l.pulse) setenv("TERM", "dumb", 1); /* launchers pretend a terminal */
    if ((err = cli_threads(o->threads, &to.threads)) ||
        (err = read_trace(o->trace, &to.trace_from, &to.trace_to)) ||
        (err = cli_job_load(argc ? argv[0] : o->resume, o->runs, &o->set, which.quiet || l.silent,
                            &job)) ||
        (err = find_files(o, &which, &job, l.silent, run, init, &to.resume))) {
        /* of a file that others may see otherwise: nobody waits for those who do not */
        alone = to.world && to.world->size > 1;
        code = alone ? fail_alone(&l, to.world, t, err) : fail_together(&l, err);
        goto out;
    }
    command_line(&command);
    to.job = job.tree;
    to.job_path = job.path;
    to.run = *run ? run : NULL;
    to.init = o->init ? init : NULL;
    to.command = command.data;
    to.again = to.stand_by = l.pulse != NULL;
    to.keep = l.pulse && wants_vault();
    to.vital = tt_pulse_vital(l.pulse);
    if (l.pulse && getenv("TUTTI_WORKERS")) to.workers = atoi(getenv("TUTTI_WORKERS"));
    if (to.world && (err = cli_share_open(to.world, &share))) {
        alone = err == TT_EPEER;
        code = alone ? fail_alone(&l, to.world, t, err) : fail_together(&l, err);
        goto out;
    }
    to.share = *share.rooms ? share.rooms : NULL;
    err = tt_train_open(&to, &t);
    if (to.world) cli_share_opened(to.world, &share);
    if (!err && l.pulse) err = take_turn(t, &l);
    if (err) {
        alone = err == TT_EPEER;
        code = alone ? fail_alone(&l, to.world, t, err) : fail_together(&l, err);
        goto out;
    }
    if (!l.pulse && !l.silent && cli_live_open(tt_train_run(t), NULL, &live))
        tt_info("%s", tt_message());
    TT_FAILPOINT("worker.begun");
    tell_start(&l, t, job.tree);
    if (!l.pulse && !l.silent) cli_detach_begun(tt_train_run(t));
    code = train(t, &l, &alone, &err);
    if (alone && to.world && to.world->size > 1) code = fail_alone(&l, to.world, t, err);
out:
    TT_FAILPOINT("worker.told");
    cli_forget_reader();
    cli_live_close(&live);
    tt_train_close(t);
    if (to.world && !alone && !l.pulse) cli_share_close(to.world, &share);
    if (l.pulse) tt_vital_set(to.vital, TT_PHASE_END, atomic_load(&to.vital->step));
    if (l.pulse && !alone) code = 0; /* the supervisor has been told */
    tt_pulse_close(l.pulse);
    /* Who leaves so takes all others with it, and the supervisor may see that first: it is to hear
     * the cause. It ends this world as soon as it has. */
    if (l.pulse && alone) nanosleep(&(struct timespec){0, 300000000}, NULL);
    if (to.world) to.world->timeout_s = 3600; /* rank 0 may have much to write */
    tt_world_leave(to.world, alone ? code : 0);
    tt_log_close();
    cli_job_close(&job);
    tt_str_free(&command);
    return code;
}

/* All workers read the job: what can be read but once will not do. */
static tt_err check_file(const char *job)
{
    struct stat st;

    if (stat(job, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) return TT_OK;
    return tt_fail(TT_EINVAL, "%s: each worker reads the job, so it must be a file", job);
}

/* The same command for a worker: what says how many and where is the supervisor's, and so is which
 * run it is. */
typedef struct command {
    tt_arena *a;
    const char **word;
    int count;
} command;

static void add_word(command *c, const char *option, const char *value)
{
    if (option && !value) return;
    if (option) c->word[c->count++] = option;
    c->word[c->count++] = value;
}

static void begin_command(command *c, const train_opts *o, const char *program)
{
    c->word = tt_arena_take(c->a, (size_t)(o->set.count * 2 + 32) * sizeof *c->word, 8);
    memset(c->word, 0, (size_t)(o->set.count * 2 + 32) * sizeof *c->word);
    add_word(c, NULL, program);
    add_word(c, NULL, "train");
    add_word(c, "--trace-steps", o->trace);
    add_word(c, "--runs", o->runs);
    if (o->threads) add_word(c, "--threads", tt_arena_printf(c->a, "%lld", (long long)o->threads));
}

/* The first world has the job as it was given; those after it as the first has resolved it, but for
 * the threads, which are as many as were wanted: a world between may have had others. */
static void make_commands(const train_opts *o, const char *job, const cli_job *tree,
                          const char *run, bool elastic, command *first, command *next)
{
    char *path = tt_arena_take(first->a, CLI_PATH, 1);
    ssize_t n = readlink("/proc/self/exe", path, CLI_PATH - 1);
    const tt_node *threads = tt_tree_get(tree->tree, "train.threads");

    path[n > 0 ? n : 0] = 0;
    begin_command(first, o, n > 0 ? path : "tutti");
    begin_command(next, o, n > 0 ? path : "tutti");
    for (int i = 0; i < o->set.count; i++) add_word(first, "--set", o->set.item[i]);
    if (elastic && !tt_tree_get(tree->tree, "parallel.exact"))
        add_word(first, "--set", "parallel.exact=true");
    add_word(first, "--run", run);
    add_word(first, "--init", o->init);
    if (o->partial) add_word(first, NULL, "--partial");
    add_word(first, "--", job); /* its name may begin with a dash */
    if (!o->threads)
        add_word(next, "--set",
                 tt_arena_printf(first->a, "train.threads=%s",
                                 threads && threads->text && *threads->text ? threads->text : "0"));
    add_word(next, "--run", run);
    add_word(next, "--", run);
}

/* A run that never began leaves nothing. */
static void clear_away(const char *run, const char *runs)
{
    static const char *const files[] = {"ledger.jsonl", "generation", "supervisor.json"};
    char path[CLI_PATH + 32];

    for (int i = 0; i < TT_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", run, files[i]);
        unlink(path);
    }
    if (!rmdir(run)) rmdir(runs ? runs : "runs");
}

static int supervise(const train_opts *o, int argc, const char **argv, const cli_adopter *adopter,
                     double wait_s, tt_helm *helm)
{
    char run[CLI_PATH], made[CLI_PATH];
    cli_run_opts which = {o->run, o->runs, o->resume, o->quiet};
    cli_job job = {0};
    tt_tree *checked = NULL;
    bool resume = false;
    cli_world_opts w = {.list = o->hosts,
                        .file = o->hostfile,
                        .listen = o->listen,
                        .key = o->key,
                        .spares = (int)o->spares,
                        .max_restarts = 10,
                        .adopter = adopter,
                        .wait_s = wait_s,
                        .dry_run = o->dry_run,
                        .helm = helm,
                        .mode = o->json    ? CLI_JSON
                                : o->quiet ? CLI_QUIET
                                           : CLI_SHOW};
    tt_str typed = {0};
    command first = {.a = tt_arena_open(1 << 14)}, next = {.a = first.a};
    int64_t from, to;
    int code;
    tt_err err;

    if (helm && !which.resume) { /* whoever had the helm before may have begun it */
        which.resume = "auto";
        which.quiet = true;
    }
    if ((err = o->elastic ? read_workers("elastic", o->elastic, &w.least, &w.ranks)
                          : read_workers("workers", o->workers, &w.least, &w.ranks)) ||
        (err = read_restarts(o->max_restarts, &w.max_restarts)) ||
        (err = read_trace(o->trace, &from, &to)) || (argc && (err = check_file(argv[0]))))
        goto fail;
    if (o->listen && !w.ranks) { /* whoever comes */
        w.least = 1;
        w.ranks = MOST_JOINED;
    }
    if ((err = cli_job_load(argc ? argv[0] : o->resume, o->runs, &o->set, o->quiet, &job)))
        goto fail;
    checked = tt_tree_copy(job.tree); /* checking fills in what the job does not say */
    if ((err = tt_job_check(checked)) || (err = cli_run_choose(&which, &job, run, &resume)))
        goto fail;
    if (resume || o->dry_run)
        snprintf(made, sizeof made, "%s", resume ? run : *run ? run : "RUN");
    else if ((err = tt_run_dir_make(o->runs ? o->runs : "runs", tt_tree_get(checked, "name")->text,
                                    *run ? run : NULL, made)))
        goto fail;
    w.run = made;
    w.own_threads = !o->threads && !tt_tree_get(job.tree, "train.threads");
    make_commands(o, argc ? argv[0] : made, &job, made, w.least && w.least < w.ranks, &first,
                  &next);
    w.worker = first.word;
    w.next = next.word;
    command_line(&typed);
    setenv("TUTTI_COMMAND", typed.data, 1);
    code = cli_supervise(&w);
    if (!resume && !o->dry_run && !helm && !tt_run_begun(made))
        clear_away(made, *run ? NULL : o->runs);
    goto out;
fail:
    code = cli_fail(err);
out:
    tt_str_free(&typed);
    tt_tree_close(checked);
    cli_job_close(&job);
    tt_arena_close(first.a);
    return code;
}

/* A cluster specification in the environment makes this a world of several: its first process
 * starts it, the others wait until they are taken in. */
static int train_listed(const train_opts *o, int argc, const char **argv, const tt_tf_config *c,
                        double wait_s)
{
    if (!*c->type)
        return cli_fail(tt_fail(TT_EINVAL,
                                "TF_CONFIG names %d processes but not which of them "
                                "this is: it has no task",
                                c->ranks));
    if (c->me == 0) {
        cli_adopter adopter;
        tt_err err = cli_adopter_open(c, &adopter);
        int code = err ? cli_fail(err) : supervise(o, argc, argv, &adopter, wait_s, NULL);
        cli_adopter_close(&adopter, code);
        return code;
    }
    if (getenv("TUTTI_RSH"))
        return cli_fail(tt_fail(TT_EENV,
                                "TUTTI_RSH is set, so %s starts all by itself: start 'tutti train' "
                                "there alone, or unset it",
                                c->rank[0].host));
    return cli_be_adopted(c, wait_s, o->quiet || o->json);
}

/* Does an allocation of Slurm with more than one task make this a world? */
static tt_err look_at_slurm(bool *launch)
{
    tt_hosts h;
    tt_err err = tt_hosts_slurm(0, &h);

    *launch = !err && tt_hosts_slots(&h) > 1;
    tt_hosts_free(&h);
    return err;
}

/* ---- several supervisors ---- */

typedef struct candidate {
    const train_opts *o;
    int argc;
    const char **argv;
    double wait_s;
} candidate;

static int lead(void *arg, tt_helm *helm)
{
    const candidate *c = arg;
    return supervise(c->o, c->argc, c->argv, NULL, c->wait_s, helm);
}

/* What would else be found out when it is needed. */
static tt_err check_candidate(const train_opts *o, int argc, const char **argv)
{
    cli_job job = {0};
    tt_hosts hosts = {0};
    int64_t from, to;
    int least, most;
    tt_err err;

    if ((err = read_workers("elastic", o->elastic, &least, &most)) ||
        (err = read_workers("workers", o->workers, &least, &most)) ||
        (err = read_trace(o->trace, &from, &to)) ||
        (o->hosts && (err = tt_hosts_parse(o->hosts, &hosts))) ||
        (o->hostfile && (err = tt_hosts_read(o->hostfile, &hosts))) ||
        (argc && (err = check_file(argv[0]))) ||
        (err = cli_job_load(argc ? argv[0] : o->resume, o->runs, &o->set, true, &job)))
        goto out;
    err = tt_job_check(job.tree);
out:
    tt_hosts_free(&hosts);
    cli_job_close(&job);
    return err;
}

static int coordinate(const train_opts *o, bool several, int argc, const char **argv, double wait_s)
{
    candidate c = {o, argc, argv, wait_s};
    bool granted = false;
    char run[CLI_PATH];
    tt_err err;

    if (!several && ((err = look_at_slurm(&granted)) || !granted))
        return cli_fail(err ? err
                            : tt_fail(TT_EINVAL, "--coordinator is for runs with a supervisor: "
                                                 "give --workers, --hosts or --hostfile"));
    if ((err = check_candidate(o, argc, argv))) return cli_fail(err);
    if (o->dry_run) return supervise(o, argc, argv, NULL, wait_s, NULL);
    snprintf(run, sizeof run, "%s", o->run ? o->run : "");
    if (!o->run && (err = cli_run_find(o->resume, o->runs, run))) return cli_fail(err);
    return cli_coordinate(&(cli_coordinate_opts){.address = o->coordinator,
                                                 .run = run,
                                                 .mode = o->json    ? CLI_JSON
                                                         : o->quiet ? CLI_QUIET
                                                                    : CLI_SHOW,
                                                 .lead = lead,
                                                 .arg = &c});
}

static int train_run(const void *opts, int argc, const char **argv)
{
    const train_opts *o = opts;
    bool several = o->workers || o->elastic || o->hosts || o->hostfile || o->listen,
         granted = false;
    double wait_s = -1;
    tt_started by = tt_world_started();
    tt_tf_config listed = {.ranks = 0};
    tt_err err;
    int code;

    catch_signals();
    if ((err = check_options(o, argc))) return cli_fail(err);
    if (several && by.by)
        return cli_fail(tt_fail(TT_EINVAL,
                                "%s has already started %d ranks: leave out --workers, --hosts and "
                                "--hostfile",
                                by.by, by.size));
    if (o->detach && by.by)
        return cli_fail(tt_fail(
            TT_EINVAL, "%s has started this: what it starts it waits for, so leave out --detach",
            by.by));
    if (o->wait && (!tt_parse_time(o->wait, &wait_s) || wait_s < 0))
        return cli_fail(tt_fail(TT_EINVAL, "--wait: '%s' is no time: say 10m", o->wait));
    if (o->detach && cli_detach(o->json, &asked, &code)) return code;
    if (o->coordinator) return coordinate(o, several, argc, argv, wait_s);
    if (several) return supervise(o, argc, argv, NULL, wait_s, NULL);
    if (!by.by && (err = tt_tf_config_parse(getenv("TF_CONFIG"), &listed))) return cli_fail(err);
    if (!by.by && listed.ranks < 2 && (err = look_at_slurm(&granted))) return cli_fail(err);
    if (!by.by && listed.ranks && *listed.type && listed.me < 0) {
        code = cli_fail(tt_fail(
            TT_EENV, "TF_CONFIG makes this the %s: it takes no part in training", listed.type));
        tt_tf_config_free(&listed);
        return code;
    }
    code = listed.ranks > 1 ? train_listed(o, argc, argv, &listed, wait_s < 0 ? 600 : wait_s)
           : granted        ? supervise(o, argc, argv, NULL, wait_s, NULL)
                            : work(o, argc, argv);
    tt_tf_config_free(&listed);
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
        (const char *const[]){"tutti train job.yaml", "train a job", "tutti train job.yaml -n 4",
                              "with four worker processes", "tutti train job.yaml -H a:4,b:4",
                              "on two hosts", "tutti train job.yaml -n 1:8 --listen",
                              "here, and on machines that join",
                              "tutti train job.yaml -s train.epochs=5", "with another value",
                              "tutti train job.yaml --resume auto", "go on where it stopped",
                              "tutti train --resume last", "go on with the newest run",
                              "tutti train job.yaml --init runs/a", "start from other weights",
                              "tutti train job.yaml -n 4 --detach", "without a terminal", NULL},
    CLI_OPTIONS(options),
    .out_size = sizeof(train_opts),
    .run = train_run,
};
