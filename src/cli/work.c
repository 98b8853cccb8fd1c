/* work: one process that trains, alone or as a worker of a world.
 *
 * Ctrl-C once, SIGTERM or SIGUSR1: the step is finished, a checkpoint saved and the command that
 * resumes is told. Ctrl-C twice: out at once. A worker tells its supervisor instead of a screen. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train.h"

/* ---- signals ---- */

volatile int work_asked;
static volatile sig_atomic_t shows;      /* there is a screen: a step may be long */
static volatile sig_atomic_t supervised; /* by somebody who says what is to be done */

static void say_at_once(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

/* A launcher that has lost one of its own on another host sends SIGTERM to the workers it has left.
 * If those there get on for a moment, all would agree that they were asked to stop: but nobody has
 * asked, and a supervisor sees to what was lost. Of a batch system it comes from somebody else. */
static void on_signal(int sig, siginfo_t *from, void *context)
{
    (void)context;
    if (sig == SIGTERM && supervised && from->si_pid == getppid()) return;
    if (sig == SIGINT && work_asked == SIGINT) {
        say_at_once("\ntutti: quit without saving\n");
        _exit(CLI_INTERRUPTED);
    }
    if (!work_asked && shows)
        say_at_once("\nstopping after this step (Ctrl-C again quits without saving)\n");
    if (!work_asked || sig == SIGINT) work_asked = sig;
}

void work_catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction act = {.sa_sigaction = on_signal, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigset_t ours;

    sigemptyset(&ours);
    for (int i = 0; i < TT_COUNT(signals); i++) {
        sigaction(signals[i], &act, NULL);
        sigaddset(&ours, signals[i]);
    }
    /* The launcher of a world has SIGTERM blocked, and that of MPICH hands this down. */
    sigprocmask(SIG_UNBLOCK, &ours, NULL);
    act = (struct sigaction){.sa_handler =
                                 SIG_IGN}; /* who reads the display may go; the training goes on */
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
    bool over; /* the run has ended, and the supervisor knows */
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
    shows = l->mode == CLI_SHOW;
    l->display = cli_display_open(l->mode, l->start);
}

/* The supervisor knows which it has heard of. */
static void tell_epoch(listener *l, const tt_epoch *e, bool again)
{
    if (e->samples)
        tt_pulse_tell(l->pulse,
                      json_pack("{s:s, s:I, s:I, s:I, s:I, s:b}", "event", "epoch", "epoch",
                                (json_int_t)e->number, "samples", (json_int_t)e->samples, "sum",
                                (json_int_t)e->sum, "count", (json_int_t)e->count, "again", again));
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
    tell_epoch(l, &p->before, true);
    tell_epoch(l, &p->ended, false);
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
    l->over = true;
    if (!l->silent && l->pulse && tt_pulse_end(l->pulse, json_incref(end)))
        tt_warn("%s", tt_message());
    if (!l->silent && !l->pulse) cli_end_show(l->mode, l->start, end);
    cli_display_close(l->display);
    json_decref(l->start);
    json_decref(end);
}

/* Trains until there is nothing left to do, or to the signal. */
static tt_err run_steps(tt_trainer *t, listener *l, const char **end, bool *left, bool *moves)
{
    tt_progress p;
    tt_err err;

    *end = NULL;
    do {
        tt_wish wish = tt_pulse_wish(l->pulse);
        if (work_asked || wish == TT_WISH_SAVE) tt_train_ask_stop(t);
        if (wish == TT_WISH_YIELD || wish == TT_WISH_MOVE)
            tt_train_ask_leave(t, wish == TT_WISH_MOVE);
        if ((err = tt_train_step(t, &p))) return err;
        if (p.numbers) tell_numbers(l, t, &p);
        tell_step(l, t, &p);
        *end = p.end;
        *left = !p.end && p.left;
        *moves = p.moves;
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
    bool left = false, moves = false;
    tt_err err, last;
    int code = 0;

    if ((err = run_steps(t, l, &end, &left, &moves))) {
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
        moves = moves || !tt_train_kept(t);
        if (moves && (err = tt_train_save(t))) *alone = true;
        if (moves && !err && !l->silent)
            tt_pulse_tell(l->pulse, json_pack("{s:s}", "event", "saved all"));
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
        code = work_asked == SIGINT ? CLI_INTERRUPTED : CLI_REQUEUE;
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
void work_command_line(tt_str *out)
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

tt_err work_read_trace(const char *text, int64_t *from, int64_t *to)
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
    tt_train_told told = {go.generation, go.known, go.told, go.ended, *go.why ? go.why : NULL};
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

int work_run(const train_opts *o, int argc, const char **argv)
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
    const tt_kernels *const *tried;
    tt_err err;
    int code;

    if (by.by) tt_kernels_with(TT_IN_BF16, &tried); /* in child processes, which MPI may not like */
    if (by.by) tt_failpoint_rank(by.rank);
    if (by.by && (err = tt_pulse_open(by.rank, &l.pulse))) return cli_fail(err);
    supervised = l.pulse != NULL;
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
        (err = work_read_trace(o->trace, &to.trace_from, &to.trace_to)) ||
        (err = cli_job_load(argc ? argv[0] : o->resume, o->runs, &o->set, which.quiet || l.silent,
                            &job)) ||
        (err = find_files(o, &which, &job, l.silent, run, init, &to.resume))) {
        /* of a file that others may see otherwise: nobody waits for those who do not */
        alone = to.world && to.world->size > 1;
        code = alone ? fail_alone(&l, to.world, t, err) : fail_together(&l, err);
        goto out;
    }
    work_command_line(&command);
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
    if (to.world && !alone && (!l.pulse || l.over)) cli_share_close(to.world, &share);
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
